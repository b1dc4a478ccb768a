"""SIGTERM: the job is to end soon, and takes a last checkpoint first.

The handler only notes it: in the midst of a step the state is in pieces. The next `step()` saves; then the signal goes
on to whoever had it before. Where no step comes in time, a thread says so and lets the signal through.
"""

import ctypes
import os
import signal
import sys
import threading

# Schedulers give 30 s by default before they kill.
GRACE_S = 25.0


class Termination:
    """Watches for SIGTERM in this process, from its main thread; elsewhere it watches nothing."""

    def __init__(self, newest):
        """`newest()`: in words, what the job can go on from."""
        self.newest = newest
        self.asked = False
        self.pid = os.getpid()
        self.previous = None
        self._timer = None
        self._expired = False
        self.watching = threading.current_thread() is threading.main_thread()
        if self.watching:
            self.previous = signal.getsignal(signal.SIGTERM)
            self.watching = self.previous is not None and self.previous is not signal.SIG_IGN
        if self.watching:
            signal.signal(signal.SIGTERM, self._came)
            os.register_at_fork(after_in_child=self._forked)

    def _came(self, number, frame):
        if self._expired:
            self.previous(number, frame)
        if self.asked:
            return
        self.asked = True
        self._timer = threading.Timer(GRACE_S, self._too_late)
        self._timer.daemon = True
        self._timer.start()

    def _too_late(self):
        say(f"SIGTERM came and no step ended within {GRACE_S:.0f} s: there is no last checkpoint, {self.newest()}")
        if self.previous == signal.SIG_DFL:
            # Only the main thread may ask Python for that, and it is busy.
            ctypes.CDLL(None).signal(signal.SIGTERM, ctypes.c_void_p(0))
        else:
            self._expired = True
        os.kill(self.pid, signal.SIGTERM)

    def go_on(self):
        """The last checkpoint is taken, or cannot be: the signal goes where it would have gone."""
        self.stop()
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self):
        """SIGTERM is again whose it was."""
        if self._timer is not None:
            self._timer.cancel()
        if self.watching and os.getpid() == self.pid and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._came:
                signal.signal(signal.SIGTERM, self.previous)
            self.watching = False
            self.newest = str

    def _forked(self):
        if self.watching:
            self.watching = False
            signal.signal(signal.SIGTERM, self.previous)


def say(sentence):
    print(f"stallscope: {sentence}", file=sys.stderr, flush=True)
