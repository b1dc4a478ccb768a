"""When to save: the steps and what saves cost go to the rule, which says when one is due."""

import datetime

from stallscope import _native

from . import ledger
from .signals import say

# Ranks look at least this often whether to save, and a look costs them a message.
_LOOK_S = 0.5
# What was seen is noted in the folder this often, for a run that goes on after this one was killed.
_NOTE_NS = 5_000_000_000


class When:
    """Decides for one saver; `decides`: for all ranks."""

    def __init__(self, saver, overhead, mtbf, every, rule, decides=True):
        if not 0 < overhead < 1:
            raise ValueError(f"overhead={overhead}: it is a part of the time, such as 0.02 for 2%")
        self.saver = saver
        mtbf_s = saver.mtbf()[0] if mtbf is None else seconds(mtbf, "mtbf")
        count = 0.0
        if every is not None:
            rule, count = fixed(every)
        self.every_steps = int(count) if rule == "steps" else None
        self.overhead = overhead
        self.mtbf_s = mtbf_s
        self.timing = _native.CheckpointTiming(rule, overhead, mtbf_s, count)
        saver.resume(self.timing)
        self._note_at_ns = 0
        self._warned = False
        self._failed = 0
        self.knob = ledger.IntervalKnob(self.timing, decides)
        self._bounded = rule == "budget"

    def step(self, waited_ns):
        """A step ended; why a save is due, if one is and can begin."""
        now_ns = _native.now()
        why, limit = self.timing.step(now_ns, waited_ns, self.saver.working())
        if now_ns >= self._note_at_ns:
            self._note_at_ns = now_ns + _NOTE_NS
            self.saver.note(self.timing)
        if limit is not None:
            self.saver.limit(limit)
        return why if why is not None and self.saver.ready() else None

    def steps_ahead(self, since_last):
        """In how many steps it is worth another look, so many after the last save."""
        return steps_ahead(self.timing, self.every_steps, since_last)

    def saved(self, began_ns, ended_ns):
        self.timing.saved(began_ns, ended_ns)
        # Written with the commit, so that a run that is killed right behind it has paid for it.
        self.saver.note(self.timing)
        self.knob.look()

    def blocked(self, blocked_ns):
        self.timing.blocked(blocked_ns)

    def written(self, outcome):
        """A save has been written; small ones say nothing of the disk."""
        if outcome.written_bytes > 1 << 20:
            self.timing.written(outcome.written_bytes / max(outcome.write_ns, 1) * 1e9)
        self.knob.look()
        self._account()
        # Rank 0's outcomes, which decides.
        if outcome.committed:
            self._tell_what_the_budget_forbids()

    def failed(self):
        """A save has failed; how many have so far."""
        self._failed += 1
        self._account()
        return self._failed

    def _tell_what_the_budget_forbids(self):
        forbidden = self.timing.forbidden()
        if forbidden is None or self._warned:
            return
        self._warned = True
        allowed_s, wanted_s = forbidden
        cost_s = self.timing.costs()[2]
        say(
            f"a checkpoint costs {_in_words(cost_s)}, so a budget of {self.overhead:.3g} allows one every {_in_words(allowed_s)}; "
            f"with a failure every {_in_words(self.mtbf_s)}, one every {_in_words(wanted_s)} would lose least: "
            f"overhead={cost_s / wanted_s:.2g} allows that"
        )

    def _account(self):
        self.saver.note(self.timing)
        spent_s, trained_s = self.timing.costs()[:2]
        budget = self.overhead if self._bounded and not self.knob.is_set else 0
        ledger.cost(spent_s, trained_s, budget, self._failed)
        ledger.rule(*self.timing.rule())

    def gone(self):
        self._account()
        self.knob.gone()


def fixed(every):
    """The rule that `every=` names, a number of steps or a time, and that number or the time's seconds."""
    rule = "steps" if isinstance(every, int) else "seconds"
    count = float(every) if rule == "steps" else seconds(every, "every")
    if count <= 0:
        raise ValueError(f"every={every!r}: an interval is longer than nothing")
    return rule, count


def steps_ahead(timing, every_steps, since_last):
    """In how many steps ranks ask each other again, so many steps after the last save."""
    _, step_s = timing.outlook()
    ahead = min(1000, int(_LOOK_S / step_s)) if step_s > 0 else 1
    if every_steps is not None:
        ahead = min(ahead, every_steps - since_last)
    return max(1, ahead)


def seconds(time, name):
    """Seconds in "6h", "1h30m", "90s", a number or a timedelta."""
    if isinstance(time, datetime.timedelta):
        return time.total_seconds()
    if isinstance(time, (int, float)):
        return float(time)
    try:
        return _native.parse_duration(str(time).lower()) / 1e9
    except ValueError:
        raise ValueError(f"{name}={time!r} is no time; write it as '6h', '30m', '90s' or in seconds") from None


def _in_words(time_s):
    return _native.duration_in_words(round(time_s * 1e9))
