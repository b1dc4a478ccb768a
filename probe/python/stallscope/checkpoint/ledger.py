"""What checkpoints cost, told to the collector where there is one."""

import sys

from stallscope import _native

_CHECKPOINT, _COST, _STALLSCOPE = 7, 13, 6
_SNAPSHOT, _PERSIST = 0, 1


def snapshot(began_ns, ended_ns, copied_bytes):
    """Training was held to copy its state."""
    _push(began_ns, ended_ns, _SNAPSHOT, copied_bytes, False)


def waited(began_ns, ended_ns):
    """Training waited for a save to end."""
    _push(began_ns, ended_ns, _PERSIST, 0, False)


def persisted(began_ns, ended_ns, written_bytes):
    """A save was written beside training."""
    _push(began_ns, ended_ns, _PERSIST, written_bytes, True)


def cost(spent_s, trained_s, budget):
    """What checkpoints have cost, of the time trained; `budget`: the part that they may cost, 0 for no limit."""
    spent_ns, trained_ns = round(spent_s * 1e9), round(trained_s * 1e9)
    _native.push(_COST, _native.now(), a=spent_ns, b=trained_ns, c=round(budget * 1e6))


def _push(began_ns, ended_ns, stage, count, elsewhere):
    # Goes nowhere where the shim is not on.
    _native.push(_CHECKPOINT, ended_ns, id=_STALLSCOPE, a=began_ns, b=stage, c=count, d=int(elsewhere))


class IntervalKnob:
    """The interval as a knob, `ckpt.interval` in seconds, where the shim is on."""

    def __init__(self, timing):
        self.timing = timing
        self.knob = None
        self.is_set = False

    def look(self):
        """Shows what is in force, once it is known."""
        process = sys.modules.get("stallscope._hooks.process")
        if process is None or not _native.enabled():
            return
        interval_s = max(1, round(self.timing.costs()[-1]))
        if self.knob is None:
            from stallscope._hooks import knobs

            self.knob = knobs.register("ckpt.interval", "seconds", interval_s, 1, 7 * 86_400, self._turn)
        else:
            self.knob.is_now(interval_s)

    def _turn(self, value):
        self.timing.set_interval(value)
        self.is_set = True
        return value, "applied", "the overhead is no longer bounded by its budget"

    def gone(self):
        if self.knob is not None:
            self.knob.gone()
            self.knob = None
