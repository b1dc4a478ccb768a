"""Groups of fetchers as the training process has them, and their end: a fork server each, with the fetchers that it makes."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import time
import warnings

from . import fetcher, process_table, server, shared_memory
from .pipe import Pipe
from .process_table import ProcessTable

# Beside what fetchers have to leave, for what has to happen then.
_MORE_S = 2
_LOOK_S = 0.02
# What a process that somebody else reaped ended with.
_UNKNOWN = 255


class FetcherGroup:
    """`given`: what its fetchers have. Forks the server."""

    def __init__(self, owner, pipe, shared, given):
        self.doorbell = Pipe()
        self.process_table = ProcessTable()
        others = [pipe.sink, self.doorbell.sink]
        arguments = (owner, others, shared, shared.group, self.doorbell.source, self.process_table, (pipe.source, *given))
        self.server = multiprocessing.get_context("fork").Process(
            target=server.run, args=arguments, daemon=True
        )
        # A handler of the script's is not to run in a child that has not put it away yet.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, fetcher.SIGNALS)
        try:
            with warnings.catch_warnings():
                # That other threads are not there in a child is what torch's workers live with, too.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.server.start()
        except BaseException:
            self.doorbell.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.started = process_table.started_at(self.server.pid)

    def ring(self):
        """Has the server look what is wanted of it."""
        try:
            # One that does not fit finds others there.
            self.doorbell.write(b"!")
        except OSError:
            # Nobody can tell it anything any more. Its fetchers go with it, when their reads have ended.
            self._kill_server()

    def has_server(self):
        """Whether the server is there still."""
        if not self.server.is_alive():
            return False
        try:
            os.waitid(os.P_PID, self.server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            # A job that reaps all children has reaped it: multiprocessing would take it for alive for ever, and signal
            # at exit the process that has its number by then.
            self.server._popen.returncode = _UNKNOWN
            return False
        return True

    def is_gone(self):
        """Whether nobody of it is left: its fetchers may be there when the server was killed."""
        if self.has_server() or not self.process_table.is_empty():
            return False
        self.server.join()
        return True

    def kill(self):
        self._kill_server()
        until_s = time.monotonic() + _MORE_S
        while self.has_server() and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        # After the server, which would make others.
        self.process_table.kill()

    def _kill_server(self):
        if self.has_server():
            process_table.kill(self.server.pid, self.started)


def end(owner, shared, groups, pipe):
    """Ends fetchers, in the process that made their servers alone: with the read under way, which may hold a lock of
    the data set's; those that take long at whatever they are."""
    if os.getpid() != owner:
        return
    shared.end()
    try:
        # Who waits for the next use wakes up; this one is of no pass.
        pipe.write(bytes(8 * shared_memory.MOST_FETCHERS))
    except OSError:
        pass
    pipe.close()
    for group in groups:
        group.ring()
    # A server ends its fetchers by itself, a little earlier.
    until_s = time.monotonic() + shared_memory.LEAVING_S + _MORE_S
    for group in groups:
        multiprocessing.connection.wait([group.server.sentinel], max(0.0, until_s - time.monotonic()))
        while not group.is_gone() and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        group.kill()
        group.doorbell.close()
    groups.clear()
