"""Processes that are started from the job and end within it, without a handler that the script has for the ends of its own."""

import contextlib
import os
import signal
import threading


@contextlib.contextmanager
def unheard():
    """Within, a handler of the script's for SIGCHLD is not called; behind it once, where a child of the script's has ended that nobody has waited for."""
    handler = signal.getsignal(signal.SIGCHLD) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):
        # None that Python calls, or one that another thread than this would have to take away.
        yield
        return
    came = []
    signal.signal(signal.SIGCHLD, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)
        if came and _has_ended():
            signal.raise_signal(signal.SIGCHLD)


def _has_ended():
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False
