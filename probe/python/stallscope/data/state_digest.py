"""Digests of Python objects: equal for equal content, in another process too. What cannot be told is never guessed."""

import io
import os
import pickle
import sys
import types
from hashlib import blake2b

import torch

# Of an object's content: as much as is read and digested in half a second.
_MOST_BYTES = 256 << 20


class CannotTell(Exception):
    """An object holds what has no content that could be compared: a handle, a lock, too much data."""


def of_state(value):
    """32 bytes for what `value` holds: an object's attributes, where it has some, and not what it says of itself when it is
    pickled, which may leave some out."""
    attributes = getattr(value, "__dict__", None)
    return _digest(value if attributes is None else attributes)


def of_code(kind):
    """For the functions of a class and of those that it is made from, but torch's and Python's own."""
    mine = [one for one in kind.__mro__ if one.__module__.partition(".")[0] not in ("torch", "builtins", "typing", "abc")]
    return _digest([sorted((name, one) for name, one in vars(of).items() if _has_code(one)) for of in mine])


def job():
    """16 bytes that ranks of one job have in common on a node, where a launcher started them, and other jobs do not."""
    pid = os.getppid() if "LOCAL_RANK" in os.environ else os.getpid()
    # A number of a process that is gone may come again.
    with open(f"/proc/{pid}/stat", "rb") as file:
        started = file.read().rpartition(b")")[2].split()[19]
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read()
    return blake2b(b"%d %s %s" % (pid, started, boot), digest_size=16).digest()


def _digest(value):
    sink = _Sink()
    try:
        _Pickler(sink).dump(value)
    except CannotTell:
        raise
    except Exception as error:
        # A recursion without end is a content that leads to itself.
        raise CannotTell(f"{type(error).__name__}: {error}") from None
    return sink.digest.digest()


class _Sink(io.RawIOBase):
    def __init__(self):
        self.digest = blake2b(digest_size=32)
        self.bytes = 0

    def writable(self):
        return True

    def write(self, data):
        self.take(len(data))
        self.digest.update(data)
        return len(data)

    def take(self, size):
        self.bytes += size
        if self.bytes > _MOST_BYTES:
            raise CannotTell("it holds too much to look at")


class _Pickler(pickle.Pickler):
    """Writes what an object is made of; nothing is ever read back."""

    def __init__(self, sink):
        super().__init__(sink, protocol=5)
        # Without a memo: equal strings are equal, be they one object or two.
        self.fast = True
        self.sink = sink
        self.functions = set()

    def reducer_override(self, value):
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            return self._array(numpy, value)
        if isinstance(value, (set, frozenset)):
            return _made, (type(value).__name__, sorted(map(_digest, value)))
        if isinstance(value, types.FunctionType):
            return NotImplemented if value is _made else self._function(value)
        if isinstance(value, (staticmethod, classmethod, property)):
            inner = [getattr(value, name, None) for name in ("__func__", "fget", "fset")]
            return _made, (type(value).__name__, inner)
        if isinstance(value, types.ModuleType):
            return _made, ("module", value.__name__)
        if isinstance(value, io.IOBase):
            raise CannotTell("it holds an open file")
        return NotImplemented

    def _tensor(self, value):
        if value.device.type != "cpu" or value.layout is not torch.strided or value.is_quantized:
            raise CannotTell(f"it holds a tensor on {value.device}")
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise CannotTell(f"it holds a {type(value).__name__}")
        size = value.numel() * value.element_size()
        if self.sink.bytes + size > _MOST_BYTES:
            raise CannotTell("it holds too much to look at")
        data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if size else b""
        return _made, ("tensor", str(value.dtype), list(value.shape), data)

    def _array(self, numpy, value):
        if isinstance(value, numpy.memmap) and value.filename is not None:
            told = os.stat(value.filename)
            where = os.fspath(value.filename), value.offset, told.st_size, told.st_mtime_ns
            return _made, ("memmap", str(value.dtype), value.shape, value.strides, where)
        if value.dtype.hasobject:
            return _made, ("array", value.shape, value.tolist())
        if self.sink.bytes + value.nbytes > _MOST_BYTES:
            raise CannotTell("it holds too much to look at")
        return _made, ("array", value.dtype.str, value.shape, value.tobytes())

    def _function(self, function):
        name = function.__module__, function.__qualname__
        if id(function) in self.functions:
            return _made, ("function", name)
        self.functions.add(id(function))
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
        seen = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        seen = {name: one for name, one in seen.items() if _is_told(one)}
        parts = _code(function.__code__), function.__defaults__, function.__kwdefaults__, cells, sorted(seen.items())
        return _made, ("function", name, parts)


def _made(*parts):
    """Stands in what is digested for the making of an object; never called."""


def _has_code(value):
    return isinstance(value, (types.FunctionType, staticmethod, classmethod, property))


def _is_told(value):
    """Of a global that a function names: data, or a function of the same kind. Modules and classes are what they are."""
    if isinstance(value, types.FunctionType):
        return not value.__module__.partition(".")[0] == "torch"
    return isinstance(value, (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, torch.Tensor)) or (
        type(value).__module__ == "numpy"
    )


def _is_full(cell):
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _names(code):
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return sorted({*code.co_names, *(name for one in inner for name in _names(one))})


def _code(code):
    constants = [_code(one) if isinstance(one, types.CodeType) else one for one in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars
