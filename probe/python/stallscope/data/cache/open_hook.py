"""`open` as samples see it: what a sample opens to read goes to the maker of the sample, everything else is untouched.

The switch belongs to the thread: only while a thread makes a sample here, and only for what that thread opens, is
anything different. An earlier wrapper of `open` is called for what has to be read, and a later one calls us.
"""

import builtins
import io
import os
import threading

_here = threading.local()


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
    """Once a process, before its first sample is made."""
    if isinstance(builtins.open, _Open):
        return
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
    if mode not in ("rb", "br") or opener is not None or isinstance(file, int):
        return None
    try:
        path = os.fsdecode(file)
    except TypeError:
        return None
    # Joined and no more: what stands before a `..` may be a link.
    return os.path.join(os.getcwd(), path)


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
    """A file's bytes, and the file itself from when something is asked for that only that has."""

    def __init__(self, data, name, reopen):
        super().__init__(data, name)
        self._reopen = reopen
        self._file = None

    def _itself(self):
        if self._file is None:
            file = self._reopen()
            file.seek(self.tell())
            # What has this object reads on in the file.
            for method in _METHODS:
                if hasattr(file, method):
                    setattr(self, method, getattr(file, method))
            self._file = file
        return self._file

    def fileno(self):
        return self._itself().fileno()

    def detach(self):
        return self._itself().detach()

    def __getattr__(self, name):
        # A file that is opened without a buffer has others than one with.
        if name.startswith("_") or not (hasattr(io.BufferedReader, name) or hasattr(io.FileIO, name)):
            return super().__getattr__(name)
        return getattr(self._itself(), name)

    @property
    def closed(self):
        return super().closed if self._file is None else self._file.closed

    def __next__(self):
        return super().__next__() if self._file is None else next(self._file)

    def __iter__(self):
        return super().__iter__() if self._file is None else iter(self._file)


_METHODS = (
    "close", "detach", "fileno", "flush", "isatty", "peek", "read", "read1", "readable", "readinto", "readinto1", "readline", "readlines",
    "seek", "seekable", "tell",
)  # fmt: skip
Itself.__name__ = Itself.__qualname__ = "BufferedReader"
Itself.__module__ = "_io"
