"""What can be turned in this process: who has a knob registers it here with what turns it.

A knob takes `turn(value)`, called in the main thread between two batches, which gives how the request stands: what is
in force now, one of the words below, and a sentence where there is something to say.
"""

import inspect
import os
import signal
import threading

from stallscope import _native

from . import process
from .outline import is_scripts

APPLIED, PENDING, REFUSED = "applied", "pending", "refused"

# By slot.
_knobs: dict = {}
# To be called before the next batch: they answer what could not be answered when it was asked. None of them raises but what a signal handler raised.
later: list = []


class Knob:
    def __init__(self, slot, value, bounds, turn):
        self.slot = slot
        self.value = value
        self.bounds = bounds
        self.turn = turn
        self.standing = None

    def answer(self, value, state, reason=""):
        """How the request stands that was last handed to `turn`."""
        self.value = value
        if (value, state, reason) != self.standing:
            self.standing = (value, state, reason)
            _native.answer(self.slot, value, state, reason)

    def failed(self, error):
        self.answer(self.value, REFUSED, process.text(f"It could not be turned: {type(error).__name__}: {error}."))

    def is_now(self, value, waits_for=""):
        """`value` is in force now; `waits_for`: why that is not yet what was asked for, a sentence."""
        if self.standing is not None and self.standing[1] != REFUSED:
            self.answer(value, PENDING if waits_for else APPLIED, waits_for)
        elif value != self.value:
            self.value = value
            _native.knob_is(self.slot, value, *self.bounds)

    def gone(self):
        _knobs.pop(self.slot, None)
        _native.knob_gone(self.slot)


def register(name, unit, value, low, high, turn, loader=None):
    """Shows a knob, and has `turn` called when somebody wants it turned. `loader`: the loader's number, None where
    it is the process's."""
    slot = _native.knob(name, unit, value, low, high, loader)
    knob = Knob(slot, value, (low, high), turn)
    _knobs[slot] = knob
    return knob


def gone_unless_replaced(knob):
    """The owner of this knob is gone; another knob may have taken its slot."""
    if _knobs.get(knob.slot) is knob:
        knob.gone()


def take_up():
    """Hands all requests to their knobs; when `_native.turned()` says that there are any."""
    if threading.current_thread() is not threading.main_thread():
        return
    for slot, value in _native.requests():
        knob = _knobs.get(slot)
        if knob is None:
            continue
        try:
            knob.standing = None
            knob.answer(*knob.turn(value))
        except Exception as error:
            if raised_by_signal(error):
                raise
            knob.failed(error)
    while later:
        later.pop(0)()


def raised_by_signal(error):
    """Whether a signal handler raised it, or another thread has had it raised here, which may be inside any call of ours: the job, or torch where a
    worker died, wants it to arrive. From another thread only errors of the script's own are known: a library's could come from what we called."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {handler.__code__ for handler in handlers if hasattr(handler, "__code__")}
    trace, caller = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code in codes or _is_handler(trace.tb_frame, caller):
            return True
        trace, caller = trace.tb_next, trace.tb_frame
    return is_scripts(type(error).__module__) and not _passed_scripts_code(error)


def _passed_scripts_code(error):
    trace = error.__traceback__
    while trace is not None:
        if is_scripts(trace.tb_frame.f_globals.get("__name__")):
            return True
        trace = trace.tb_next
    return False


def _is_handler(frame, interrupted):
    """Whether it is called with a signal's number and the frame that it interrupts. A handler may have set another one before it raises, and of an
    object that can be called, such as a partial function, nothing leads to its code."""
    if interrupted is None:
        return False
    code, held = frame.f_code, frame.f_locals
    given = [held.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        given += held.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return any(frame is interrupted and isinstance(number, int) for number, frame in zip(given, given[1:]))


def _forget():
    _knobs.clear()
    later.clear()


os.register_at_fork(after_in_child=_forget)
