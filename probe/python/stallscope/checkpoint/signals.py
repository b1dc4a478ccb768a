"""SIGTERM, or whichever signal says that the job is to end soon: it takes a last checkpoint first.

The handler only notes it: in the midst of a step the state is in pieces. The next `step()` saves; then the signal goes
on to the handler before. Where no step comes in time, a thread says so and lets the signal through.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import types

from stallscope import _notices

from .errors import printable

# Schedulers give 30 s by default before they kill.
GRACE_S = 25.0

# Those that watch signals now, the oldest first.
_watching: list[Termination] = []
# What is registered for forks stays so.
_looks_after_forks = False
# Of each thread, what its mask was before the forks that are under way in it.
_forking = threading.local()


class Termination:
    """Watches for signals in this process, from its main thread; elsewhere it watches nothing. `names`: as "SIGUSR1"."""

    def __init__(self, newest, names=("SIGTERM",)):
        """`newest()`: in words, what the job can go on from."""
        self.newest = str
        self.asked = False
        self.pid = os.getpid()
        # Number -> whose it was, of those that are watched, and of those that were.
        self.previous, self._former = {}, {}
        self._came_first = None
        self._timer = None
        self._expired = False
        numbers = [_number(name) for name in ([names] if isinstance(names, (str, int)) else names)]
        if threading.current_thread() is not threading.main_thread():
            return
        _look_after_forks()
        _watching.append(self)
        self.newest = newest
        for number in numbers:
            previous = signal.getsignal(number)
            if previous is not None and previous is not signal.SIG_IGN:
                self.previous.setdefault(number, previous)
                signal.signal(number, self._came)
        if not self.previous:
            _watching.remove(self)
            self.newest = str

    @property
    def name(self):
        """Of the signal that came."""
        return signal.Signals(self._came_first).name

    def _came(self, number, frame):
        if number not in self.previous or os.getpid() != self.pid:
            # Another Checkpointer, which was made later and closed later, has put this one's back; or the signal is a child's own, which it was
            # sent before any code of ours ran there.
            _let_through(_beyond(self._came, number, closed=os.getpid() == self.pid), number, frame)
            return
        if self._expired:
            _let_through(self.previous[number], number, frame)
        if self.asked:
            return
        self._came_first = number
        self.asked = True
        self._timer = threading.Timer(GRACE_S, self._too_late)
        self._timer.daemon = True
        try:
            self._timer.start()
        except RuntimeError:
            # There may be no more threads: nobody looks whether a step ends in time. It was raised in the midst of whatever the job does.
            self._timer = None

    def _too_late(self):
        number = self._came_first
        if number not in self.previous:
            return
        say(f"{self.name} came and no step ended within {GRACE_S:.0f} s: there is no last checkpoint, {self.newest()}")
        if self.previous[number] == signal.SIG_DFL:
            # Only the main thread may ask Python for that, and it is busy.
            ctypes.CDLL(None).signal(number, ctypes.c_void_p(0))
        else:
            self._expired = True
        os.kill(self.pid, number)

    def go_on(self):
        """The last checkpoint is taken, or cannot be: the signal goes where it would have gone."""
        self.stop()
        os.kill(os.getpid(), self._came_first)

    def stop(self):
        """The signals are again whose they were."""
        if self._timer is not None:
            self._timer.cancel()
        if self.previous and os.getpid() == self.pid and threading.current_thread() is threading.main_thread():
            self._give_back()
        # No cycle with the Checkpointer, which holds loaders: workers that stay would end when it is collected, a wait of some seconds wherever that is.
        self.newest = str

    def _give_back(self):
        watched, self.previous = self.previous, {}
        self._former = watched
        if self in _watching:
            _watching.remove(self)
        for number in watched:
            if signal.getsignal(number) == self._came:
                signal.signal(number, _beyond(self._came, number, closed=True))

    def _forked(self):
        watched = self.previous
        if watched:
            self._give_back()
        for number in watched:
            previous = signal.getsignal(number)
            # By SIGTERM torch's own handler ends a worker, with or without us.
            if number != signal.SIGTERM and previous in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._came_in_child)

    def _came_in_child(self, number, frame):
        """A worker of a loader lives on for the last checkpoint, as with any handler of the script's that it inherits: a signal to the
        whole group, as Ctrl-C is, would end it, and training with it. Any other child ends as without us."""
        torch_data = sys.modules.get("torch.utils.data")
        is_worker = torch_data is not None and torch_data.get_worker_info() is not None
        if is_worker and os.getppid() == self.pid:
            return
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        _let_through(default, number, frame)


def _look_after_forks():
    global _looks_after_forks
    if not _looks_after_forks:
        _looks_after_forks = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def _before_fork():
    """A child has our handlers until _after_in_child, and what comes in between would be lost: Python drops it, or a handler of ours notes it where
    nobody looks. So that has to wait for the handler before, where that is the system's own. Handlers of the script's get what they always get: what
    they raise within here would be lost."""
    before = None
    try:
        numbers = {number for one in list(_watching) for number in list(one.previous)}
        numbers = {number for number in numbers if _is_ours(signal.getsignal(number)) and _beyond(signal.getsignal(number), number) == signal.SIG_DFL}
        if numbers:
            # As it was, before anything changes: handlers run within these calls, and may raise.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    finally:
        if not hasattr(_forking, "masks"):
            _forking.masks = []
        _forking.masks.append(before)


def _after_in_parent():
    before = _forking.masks.pop()
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_in_child():
    try:
        for one in reversed(list(_watching)):
            one._forked()
    finally:
        _after_in_parent()


def _is_ours(handler):
    return isinstance(handler, types.MethodType) and handler.__func__ is Termination._came


def _beyond(handler, number, closed=False):
    """Whose the signal was before `handler`, a Termination's, and all others of ours before it; with `closed`, before it and those that are closed."""
    while _is_ours(handler):
        one = handler.__self__
        if closed and number in one.previous:
            break
        handler = one.previous[number] if number in one.previous else one._former[number]
    return handler


def _let_through(previous, number, frame):
    if callable(previous):
        previous(number, frame)
    else:
        signal.signal(number, previous)
        os.kill(os.getpid(), number)


def _number(name):
    try:
        number = signal.Signals[name] if isinstance(name, str) else signal.Signals(name)
    except (KeyError, ValueError):
        raise ValueError(f"signals: there is no signal {name!r}; write 'SIGTERM' or 'SIGUSR1'") from None
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"signals: {number.name} cannot be caught; take one that comes before it, such as 'SIGTERM'")
    return number


def say(sentence):
    _notices.line(f"stallscope: {printable(sentence)}")
