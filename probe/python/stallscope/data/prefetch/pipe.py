"""A pipe from the training process to fetchers, or to their fork server."""

import fcntl
import os

# Low numbers belong to the job: some programs close or count on them.
_FIRST_FD = 700


class Pipe:
    """What is written never waits. The descriptors are looked at before each use: a job may close what it likes, and
    the number may be one of its own files by then."""

    def __init__(self):
        source, sink = os.pipe()
        try:
            self.source, self.sink = _high(source), _high(sink)
        finally:
            os.close(source)
            os.close(sink)
        for fd in (self.source, self.sink):
            os.set_blocking(fd, False)
        self.identity = _identity(self.sink)

    def write(self, data):
        """Whether `data` was written, which it is whole or not at all."""
        if _identity(self.sink) != self.identity:
            raise OSError("the pipe was closed")
        try:
            os.write(self.sink, data)
        except BlockingIOError:
            return False
        return True

    def close(self):
        for fd in (self.source, self.sink):
            if _identity(fd) == self.identity:
                os.close(fd)


def _high(fd):
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD)
    except OSError:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _identity(fd):
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino
