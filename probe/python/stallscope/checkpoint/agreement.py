"""At which steps the ranks of a job ask each other whether to save, and what they agree on.

Ranks ask only at steps on which all of them know, as none may wait for another that does not ask.
"""

_NOT, _DUE, _TERMINATED = range(3)


class Agreement:
    """Of the job's `ranks`. `objects`: those that the Checkpointer was given."""

    def __init__(self, ranks, objects, telling):
        self._ranks, self._telling = ranks, telling
        # Which know whether ranks make different numbers of steps.
        self._joinable = [one for one in objects if hasattr(one, "_join_config")]
        self._look_at = 1

    def restored(self, step):
        self._look_at = step + 1

    def reached(self, step, is_due, terminated, steps_ahead):
        """Whether all ranks save now, and whether that is because a signal came to one of them. `steps_ahead()`: of rank 0, when one may be due next."""
        if any(one._join_config.enable for one in self._joinable):
            # None may wait for another, and the next look is as many steps ahead on all of them.
            self._look_at += 1
            self._telling.warn("within Join, where ranks make different numbers of steps, step() takes no checkpoint: call save() on all ranks behind it")
            return False, False
        if step < self._look_at:
            return False, False
        first = self._ranks.rank == 0
        wanted = _TERMINATED if terminated else _DUE if first and is_due else _NOT
        wanted, ahead = self._ranks.most([wanted, steps_ahead() if first else 0])
        # The one that is due counts from here; the next look is soon after it.
        self._look_at = step + (1 if wanted else max(1, ahead))
        return wanted != _NOT, wanted == _TERMINATED
