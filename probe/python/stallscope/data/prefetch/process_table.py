"""Which processes the fetchers of one fork server are: to end those that hang when it is gone."""

import ctypes
import mmap
import os
import signal

from .shared_memory import MOST_FETCHERS

# Of what follows the name in a process's stat: its state, and when it started, in ticks since boot.
_STATE, _STARTED = 0, 19


class ProcessTable:
    """Made before the fork server is forked, which has it from then on, as its fetchers have.

    A fetcher's pid and start time are two words, and may be read while a fetcher of the same number writes its own.
    That does no harm: there is one of a number at a time, so the earlier one is gone by then, and a process is taken
    for a fetcher only if both words are its own."""

    def __init__(self):
        # Anonymous and shared.
        memory = mmap.mmap(-1, 2 * MOST_FETCHERS * 8)
        self.words = (ctypes.c_uint64 * (2 * MOST_FETCHERS)).from_buffer(memory)

    def enter(self, number):
        """By fetcher `number`, before anything in which it may hang."""
        self.words[2 * number + 1] = started_at("self") or 0
        self.words[2 * number] = os.getpid()

    def is_empty(self):
        """Whether all fetchers are gone."""
        return not any(started_at(pid) == started for pid, started in self._entries())

    def kill(self):
        for pid, started in self._entries():
            kill(pid, started)

    def _entries(self):
        words = list(self.words)
        return [(pid, started) for pid, started in zip(words[::2], words[1::2]) if pid and started]


def started_at(pid):
    """When this process started; None where it has ended, or nothing can be seen of it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[_STATE] in (b"Z", b"X") else int(fields[_STARTED])
    except (OSError, IndexError, ValueError):
        return None


def kill(pid, started):
    """Ends this process, and no other that has its number by now."""
    try:
        # Stands for that process, even if another one gets its number later.
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # Gone, or an old kernel.
        process = None
    try:
        if started_at(pid) != started:
            return
        if process is not None:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except OSError:
        # It went by itself.
        pass
    finally:
        if process is not None:
            os.close(process)
