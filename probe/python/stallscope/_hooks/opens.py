"""Opens and reads of files, timed where STALLSCOPE_OPENS is set: `fetch` without kernel evidence."""

import builtins
import io
import os

from stallscope import _native


class _TimedFile(io.FileIO):
    """A raw file whose reads are timed; what is buffered in front of it is the usual."""

    def readinto(self, buffer, *, readinto=io.FileIO.readinto, now=_native.now, add_read=_native.add_read):
        began_ns = now()
        count = readinto(self, buffer)
        add_read(began_ns)
        return count

    def readall(self, *, readall=io.FileIO.readall, now=_native.now, add_read=_native.add_read):
        began_ns = now()
        data = readall(self)
        add_read(began_ns)
        return data


def _timed(path, fspath=os.fspath, buffered=io.BufferedReader):
    raw = _TimedFile(fspath(path))
    return buffered(raw, max(raw._blksize, io.DEFAULT_BUFFER_SIZE))


def install():
    """Once a process, on request."""
    if not os.environ.get("STALLSCOPE_OPENS") or isinstance(builtins.open, _native.Open):
        return
    timed = _native.Open(builtins.open, _timed)
    builtins.open = timed
    io.open = timed
