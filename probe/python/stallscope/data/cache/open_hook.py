"""`open` as samples see it: what a sample opens to read goes to the maker of the sample, everything else is untouched.

The switch belongs to the thread: only while a thread makes a sample here, and only for what that thread opens, is
anything different. An earlier wrapper of `open` is called for what has to be read, and a later one calls us.
"""

import _io
import builtins
import io
import os
import pathlib
import threading

from stallscope._hooks.knobs import raised_by_signal

_here = threading.local()
_is_installed = False


class _Open:
    """Takes the place of `open`. Not a function, because as a class attribute that would turn into a method. Pickled as
    `io.open`: the process that unpickles it has one."""

    # What is asked for and is not here, such as the documentation, is the original's.
    __slots__ = ("original",)
    __module__ = "io"

    def __init__(self, original):
        self.original = original

    def __call__(self, *args, **kwargs):
        maker = getattr(_here, "maker", None)
        if maker is None:
            return self.original(*args, **kwargs)
        # What the maker opens is its own affair.
        _here.maker = None
        try:
            return maker.opened(self.original, args, kwargs)
        finally:
            _here.maker = maker

    def __reduce__(self):
        return "open"

    def __getattr__(self, name):
        return getattr(self.original, name)


_Open.__doc__ = open.__doc__


def without(value):
    """`value`, or what ours has taken the place of."""
    # isinstance() would ask what the value says of itself.
    return value.original if type(value) is _Open else value


def install():
    """Once a process, before its first sample is made. What a script puts in the place of ours later stays there, and calls ours or does not: around it,
    ours would give the bytes that were kept in the place of what it gives. Again where Python's own is back."""
    global _is_installed
    if type(builtins.open) is _Open or (_is_installed and builtins.open is not _io.open):
        return
    _is_installed = True
    ours = _Open(builtins.open)
    if io.open is builtins.open:
        io.open = ours
    builtins.open = ours


def take(maker):
    """From now on what this thread opens goes to `maker.opened(open, args, kwargs)`; gives who had it before, for `give_back`."""
    before = getattr(_here, "maker", None)
    _here.maker = maker
    return before


def give_back(before):
    _here.maker = before


def made_by(maker, make):
    """What `make()` gives; what this thread opens meanwhile goes to `maker.opened(open, args, kwargs)`."""
    before = take(maker)
    try:
        return make()
    finally:
        give_back(before)


def path_of(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
    """With the arguments of `open`: the path, where its bytes are opened to be read and nothing else is asked for; else
    None."""
    plain = opener is encoding is errors is newline is None and closefd is True and type(buffering) is int
    # A buffer of lines is warned of, and a negative one refused.
    if mode not in ("rb", "br") or not plain or not _is_path(file) or buffering < -1 or buffering == 1:
        return None
    try:
        path = os.fsdecode(file)
        # Joined and no more: what stands before a `..` may be a link.
        return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    except (TypeError, OSError):
        # No path, or in a folder that is gone.
        return None


def _is_path(file):
    """Whether it names the same file each time it is asked: what a class of the script's own says may be another one, drawn at random."""
    kind = type(file)
    return issubclass(kind, (str, bytes, os.DirEntry)) or getattr(kind, "__fspath__", None) is pathlib.PurePath.__fspath__


def name_of(file, *args, **kwargs):
    """With the arguments of `open`: the `name` of the file that it gives."""
    return os.fspath(file)


class Held(io.BytesIO):
    """A file's bytes where the file itself is asked for. `lacked`: what a file has and this has not was asked for, so that
    the caller may have gone another way."""

    mode = "rb"
    lacked = False

    def __init__(self, data, name):
        super().__init__(data)
        self.name = name

    def fileno(self):
        self.lacked = True
        return super().fileno()

    def detach(self):
        self.lacked = True
        return super().detach()

    def __getattr__(self, name):
        if hasattr(io.BufferedReader, name):
            self.lacked = True
        raise AttributeError(f"'_io.BufferedReader' object has no attribute '{name}'")

    def peek(self, size=0):
        at = self.tell()
        data = self.read(io.DEFAULT_BUFFER_SIZE)
        self.seek(at)
        return data

    def read1(self, size=-1):
        if size is None or size < 0:
            # As many as a file has in its buffer.
            self.lacked = True
        return super().read1(size)

    def writable(self):
        return False

    def _refuse(self, *args):
        raise io.UnsupportedOperation("write")

    write = writelines = truncate = _refuse

    def _missing(self):
        raise AttributeError("a file that is open to be read has no such attribute")

    # What a file has not: who finds one of these goes a way that it would not go with a file.
    getbuffer = property(_missing)
    getvalue = property(_missing)


# As a file says what it is.
Held.__name__ = Held.__qualname__ = "BufferedReader"
Held.__module__ = "_io"


class Itself(Held):
    """A file's bytes, and the file itself from when something is asked for that only that has, or that it refuses."""

    def __init__(self, data, name, reopen):
        super().__init__(data, name)
        self._size = len(data)
        self._reopen = reopen
        self._file = None

    def _itself(self):
        if self._file is None:
            file = self._reopen()
            if io.BytesIO.closed.__get__(self):
                file.close()
            else:
                file.seek(io.BytesIO.tell(self))
            # What has this object reads on in the file.
            for method in (*_CALLS, "close", "detach", "fileno", "flush", "isatty", "readable", "seekable", "writable"):
                if hasattr(file, method):
                    setattr(self, method, getattr(file, method))
            self._file = file
        return self._file

    def outlives(self):
        """It is there after its sample: what it reads is the file's, which may change. One that is gone by now is as it was."""
        if self._file is None and not io.BytesIO.closed.__get__(self):
            try:
                self._itself()
            except OSError as error:
                if raised_by_signal(error):
                    raise

    def fileno(self):
        return self._itself().fileno()

    def detach(self):
        return self._itself().detach()

    def write(self, *args):
        return self._itself().write(*args)

    def writelines(self, *args):
        return self._itself().writelines(*args)

    def truncate(self, *args):
        return self._itself().truncate(*args)

    def read1(self, size=-1, /):
        if type(size) is int and size >= 0 and self._is_plain():
            return super().read1(size)
        # As many as a file has in its buffer.
        return self._itself().read1(size)

    def __getattr__(self, name):
        # A file that is opened without a buffer has others than one with.
        if name.startswith("_") or not (hasattr(io.BufferedReader, name) or hasattr(io.FileIO, name)):
            return super().__getattr__(name)
        return getattr(self._itself(), name)

    @property
    def closed(self):
        return super().closed if self._file is None else self._file.closed

    def __enter__(self):
        return self if self._is_plain() else self._itself().__enter__()

    def __next__(self):
        return super().__next__() if self._is_plain() else next(self._itself())

    def __iter__(self):
        return super().__iter__() if self._is_plain() else iter(self._itself())

    def __reduce_ex__(self, protocol):
        raise TypeError("cannot pickle '_io.BufferedReader' object")

    def _is_plain(self, *args):
        """Whether the bytes alone answer a call: not where the file is there, closed, or asked for what it refuses."""
        return self._file is None and not io.BytesIO.closed.__get__(self) and all(type(one) is not int or one >= -1 for one in args)

    def seek(self, *args):
        if self._is_plain() and self._reaches(*args):
            return super().seek(*args)
        return self._itself().seek(*args)

    def _reaches(self, offset, whence=0):
        if type(offset) is not int or type(whence) is not int or not 0 <= whence <= 2:
            return False
        from_here = io.BytesIO.tell(self) if whence == 1 else 0 if whence == 0 else self._size
        return 0 <= from_here + offset < 1 << 62


_CALLS = ("peek", "read", "read1", "readinto", "readinto1", "readline", "readlines", "seek", "tell", "truncate", "write", "writelines")


def _answering(name):
    of_bytes = getattr(Held, name)

    def call(self, *args, **kwargs):
        if self._is_plain(*args) and not kwargs:
            return of_bytes(self, *args)
        return getattr(self._itself(), name)(*args, **kwargs)

    return call


for _name in ("peek", "read", "readinto", "readinto1", "readline", "readlines", "tell"):
    setattr(Itself, _name, _answering(_name))
Itself.__name__ = Itself.__qualname__ = "BufferedReader"
Itself.__module__ = "_io"
