"""Whether a loop draws from the process's generators between a step and the batch that follows: noise for a generator, or which of
several loaders is next.

A loop that is taken up sets them when its loader is iterated, so that what a script draws as it starts is undone. Where the loop takes
batches from a generator function, that is in the midst of its first round, and what was drawn in it so far is its own.
"""

from stallscope import _random

_LOOKS = 3


class Between:
    """Of the loaders of one loop."""

    def __init__(self):
        self.after_step = None
        self.looks = []

    def stepped(self):
        if len(self.looks) < _LOOKS:
            self.after_step = _random.capture(devices=False)

    def asked(self, is_first):
        """A batch is asked for. `is_first`: of its pass, before which an order is drawn."""
        if self.after_step is not None and not is_first:
            self.looks.append(_random.capture(devices=False) != self.after_step)
        self.after_step = None

    def draws(self):
        """Whether it did so each time."""
        return bool(self.looks) and all(self.looks)


class Begun:
    """A pass that took a position up: the generators before and after."""

    def __init__(self, before):
        self.before, self.after = before, _random.capture()

    def asked(self):
        """For the first batch. A loop that draws before it asks has drawn already, if nothing was since the pass began."""
        if _random.capture() == self.after:
            _random.restore(self.before)
