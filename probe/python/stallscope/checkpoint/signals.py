"""SIGTERM, or whichever signal says that the job is to end soon: it takes a last checkpoint first.

The handler only notes it: in the midst of a step the state is in pieces. The next `step()` saves; then the signal goes
on to the handler before. Where no step comes in time, a thread says so and lets the signal through.
"""

import ctypes
import os
import signal
import sys
import threading

from stallscope import _notices

from .errors import printable

# Schedulers give 30 s by default before they kill.
GRACE_S = 25.0


class Termination:
    """Watches for signals in this process, from its main thread; elsewhere it watches nothing. `names`: as "SIGUSR1"."""

    def __init__(self, newest, names=("SIGTERM",)):
        """`newest()`: in words, what the job can go on from."""
        self.newest = newest
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
        for number in numbers:
            previous = signal.getsignal(number)
            if previous is not None and previous is not signal.SIG_IGN:
                signal.signal(number, self._came)
                self.previous[number] = previous
        if self.previous:
            os.register_at_fork(after_in_child=self._forked)

    @property
    def name(self):
        """Of the signal that came."""
        return signal.Signals(self._came_first).name

    def _came(self, number, frame):
        if number not in self.previous:
            # Another Checkpointer, which was made later and closed later, has put this one's back.
            _let_through(self._former[number], number, frame)
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
            self.newest = str

    def _give_back(self):
        watched, self.previous = self.previous, {}
        self._former = watched
        for number, previous in watched.items():
            if signal.getsignal(number) == self._came:
                signal.signal(number, previous)

    def _forked(self):
        watched = self.previous
        if watched:
            self._give_back()
        for number, previous in watched.items():
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
