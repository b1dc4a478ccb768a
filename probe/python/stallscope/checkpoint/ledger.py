"""What checkpoints cost, reported to the collector where there is one."""

import sys

from stallscope import _native


def snapshot(began_ns, ended_ns, copied_bytes):
    """Training was held to copy its state."""
    _push("snapshot", "main_thread", began_ns, ended_ns, copied_bytes)


def waited(began_ns, ended_ns):
    """Training waited for a save to end."""
    _push("persist", "main_thread", began_ns, ended_ns, 0)


def persisted(began_ns, ended_ns, written_bytes):
    """A save was written beside training."""
    _push("persist", "thread", began_ns, ended_ns, written_bytes)


def cost(spent_s, trained_s, budget, failed):
    """What checkpoints have cost, of the time trained; `budget`: the part that they may cost, 0 for no limit; `failed`:
    saves of this process that failed."""
    _native.checkpoint_cost(
        spent_ns=round(spent_s * 1e9),
        trained_ns=round(trained_s * 1e9),
        budget_ppm=round(budget * 1e6),
        failed=failed,
    )


def rule(cost_s, persist_s, mtbf_s, interval_s):
    """What the checkpointer's own rule goes by, and its interval: see `CheckpointTiming.rule`."""
    cost_ns, persist_ns, mtbf_ns, interval_ns = (_nanoseconds(time_s) for time_s in (cost_s, persist_s, mtbf_s, interval_s))
    _native.checkpoint_rule(cost_ns=cost_ns, persist_ns=persist_ns, mtbf_ns=mtbf_ns, interval_ns=interval_ns)


def _nanoseconds(time_s):
    """A failure in a thousand years, say, is beyond what the record holds."""
    return round(min(time_s, 1e9) * 1e9)


def _push(stage, caller, began_ns, ended_ns, count):
    # Goes nowhere where the shim is not on.
    _native.checkpoint(
        saver="stallscope", stage=stage, caller=caller, began_ns=began_ns, ended_ns=ended_ns, bytes=count
    )


_AUTOMATIC = 0
_LONGEST_S = 7 * 86_400
_FOLLOWS = "Rank 0 decides when all ranks save: its ckpt.interval holds for this rank, too."


class IntervalKnob:
    """The interval as a knob, `ckpt.interval` in seconds, where the shim is on; 0 for the one that the script's own
    rule gives. `decides`: whether this rank's interval is the job's."""

    def __init__(self, timing, decides):
        self.timing = timing
        self.decides = decides
        self.knob = None
        self.is_set = False
        self.shown = False

    def look(self):
        """Shows what is in force, once it is known."""
        process = sys.modules.get("stallscope._hooks.process")
        if process is None or not _native.enabled():
            return
        if self.shown:
            if self.knob is not None:
                self.knob.is_now(self._in_force())
            return
        self.shown = True
        if not self.decides:
            _native.knob_unavailable("ckpt.interval", "seconds", _AUTOMATIC, None, _FOLLOWS)
            return
        from stallscope._hooks import knobs

        self.knob = knobs.register("ckpt.interval", "seconds", self._in_force(), _AUTOMATIC, _LONGEST_S, self._turn)

    def _in_force(self):
        return max(1, round(self.timing.costs()[-1]))

    def _turn(self, value):
        self.is_set = value != _AUTOMATIC
        self.timing.set_interval(value if self.is_set else None)
        if self.is_set:
            return value, "applied", "the overhead is no longer bounded by its budget"
        return self._in_force(), "applied", "the interval is the script's own again"

    def gone(self):
        if self.knob is not None:
            self.knob.gone()
            self.knob = None
