"""What a loop draws from the process's generators outside of its steps: before an epoch, and between a step and the batch that follows.

A loop that is taken up sets them when its loader is iterated, so that what a script draws as it starts is undone. What it draws there
once an epoch (a size of pictures, a level of noise) it is to draw again: until then the generators are as they were when the pass before ended.
Where the loop takes batches from a generator function, its loader is iterated in the midst of its first round, and what was drawn in it so far
is its own.
"""


from stallscope import _notices, _random

_LOOKS = 3


class Between:
    """Of the loaders of one loop."""

    def __init__(self):
        self.after_step = None
        self.looks = []
        # As the last pass ended, and as the newest one began.
        self.before, self.after_begin = _random.capture(devices=False), None
        # Whether one of them took up a position with nothing left to give, so that the loop's next round begins before others have taken up theirs.
        self.round_over = False

    def begun(self):
        self.after_begin = _random.capture(devices=False)

    def ended(self):
        self.before = _random.capture(devices=False)

    def drawn_before(self, began):
        """The generators as they were before the loop drew from them and began a pass with `began`; None where it did not draw."""
        return None if _alike(self.before, began) else self.before

    def stepped(self):
        if len(self.looks) < _LOOKS:
            self.after_step = _random.capture(devices=False)

    def asked(self, current):
        """A batch is asked for, of the pass `current`; before its first one an order is drawn."""
        is_first = not current.end.gave
        if is_first and self.after_begin is not None:
            current.draws_within = not _alike(self.after_begin, _random.capture(devices=False))
            self.after_begin = None
        if self.after_step is not None and not is_first:
            self.looks.append(_random.capture(devices=False) != self.after_step)
        self.after_step = None

    def state(self, current):
        """Of the pass that is under way, or None: whether it is known what the loop draws, and whether it draws before each batch and before
        it has begun its loader."""
        within = current is not None and current.draws_within
        return {"draws_known": within or bool(self.looks), "draws_first": bool(self.looks) and all(self.looks) and not within}

    def load(self, state):
        self.round_over = False
        if state.get("draws_first"):
            self.looks.append(True)


class Begun:
    """A pass that took a position up: the generators before and after."""

    def __init__(self, before):
        self.before, self.after = before, _random.capture()

    def asked(self):
        """For the first batch. A loop that draws before it asks has drawn already, if nothing was since the pass began."""
        if _random.capture() == self.after:
            _random.restore(self.before)


def look_at_drawn(resume, now):
    """Warns where the script, which was to draw again what it drew before the pass whose position `resume` is, has drawn something else, or where
    that may have been for a batch."""
    began = resume.get("began") or resume["states"]["process"]
    if _alike(resume["before"], now):
        return
    if not _alike(began, now):
        why = (
            "the script drew other random numbers before this epoch than the job did that saved: what it draws there once an epoch (a size, a level of "
            "noise) has other values for the rest of this epoch; keep that in state= of the Checkpointer"
        )
    elif not resume["draws_known"]:
        why = (
            "the script drew random numbers before its first batch, and the checkpoint is of one of the first steps, which do not show whether it does so "
            "once an epoch or for each batch: they are taken for the epoch's; start from a later checkpoint if they are the batch's"
        )
    else:
        return
    _notices.warn(f"stallscope: {why}", 5)


def _alike(one, other):
    """Whether the generators that both have are in the same states."""
    return all(one[name] == other[name] for name in one.keys() & other.keys())
