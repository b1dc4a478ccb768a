"""Kinds of Python's and numpy's values that states have beside plain data, as JSON.

Nothing of a checkpoint is imported, and no constructor of a class that it names runs: members of an Enum are looked up, and a
namedtuple is filled as a tuple, of classes that the program has loaded already.
"""

import argparse
import base64
import collections
import datetime
import decimal
import enum
import fractions
import pathlib
import re
import sys
import types
import uuid

import torch

from stallscope._keys import distinguishable

from .errors import CheckpointError

_FACTORIES = {one.__name__: one for one in (list, dict, set, tuple, int, float, str, bool)}
_PATHS = {one.__name__: one for one in (pathlib.PurePosixPath, pathlib.PureWindowsPath)}
_TEXTS = {"decimal": decimal.Decimal, "fraction": fractions.Fraction, "uuid": uuid.UUID}
# How much more memory arrays of strings may take than their strings have characters, and bytes aside for all of a state together.
# numpy gives each of them as much as the longest has.
_SPARE_FOLD, _SPARE_BYTES = 16, 64 << 20
_SPACES = {"namespace": types.SimpleNamespace, "arguments": argparse.Namespace}


class Spare:
    """What arrays of strings may take beyond their texts: a few bytes of a checkpoint must not take gigabytes."""

    def __init__(self):
        self._left = _SPARE_BYTES

    def suffices(self, dtype, items):
        """Whether these strings may be an array; then what that takes is gone."""
        beyond = dtype.itemsize * len(items) - _SPARE_FOLD * sum(len(one) + 1 for one in items)
        if beyond > self._left:
            return False
        self._left -= max(0, beyond)
        return True


def encode(value, encode_one, spare):
    """`value` as JSON; None where it is of none of these kinds. `encode_one(value, name)` encodes what it holds, `name` to be
    added to its own; `spare` is the state's."""
    kind = type(value)
    if kind is collections.defaultdict:
        factory = value.default_factory
        if factory is None or _FACTORIES.get(getattr(factory, "__name__", None)) is factory:
            return {"defaultdict": [None if factory is None else factory.__name__, _pairs(value, encode_one)]}
    elif kind is collections.Counter:
        return {"counter": _pairs(value, encode_one)}
    elif kind is collections.deque:
        return {"deque": [value.maxlen, [encode_one(one, str(at)) for at, one in enumerate(value)]]}
    elif kind is bytearray:
        return {"bytearray": base64.b64encode(value).decode()}
    elif kind is complex:
        return {"complex": [value.real, value.imag]}
    elif kind in (range, slice):
        return {kind.__name__: [encode_one(one, "") for one in (value.start, value.stop, value.step)]}
    elif kind in (datetime.datetime, datetime.time):
        if value.tzinfo is None or type(value.tzinfo) is datetime.timezone:
            return {kind.__name__: [value.isoformat(), value.fold]}
    elif kind is datetime.date:
        return {"date": value.isoformat()}
    elif kind is datetime.timedelta:
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    elif kind in _TEXTS.values():
        return {next(name for name, one in _TEXTS.items() if one is kind): str(value)}
    elif kind in _SPACES.values():
        fields = {name: encode_one(one, name) for name, one in vars(value).items()}
        return {next(name for name, one in _SPACES.items() if one is kind): fields}
    elif kind in (pathlib.PosixPath, pathlib.WindowsPath):
        return {"path": str(value)}
    elif kind in _PATHS.values():
        return {"purepath": [kind.__name__, str(value)]}
    elif kind is torch.Generator:
        return {"generator": [str(value.device), encode_one(value.get_state(), "generator")]}
    elif isinstance(value, enum.Enum) and _loaded(_place(kind)) is kind:
        # A combination of flags has no name of its own.
        named = kind.__members__.get(value.name) is value
        if named or isinstance(value, enum.Flag):
            return {"enum": [*_place(kind), value.name if named else value.value]}
    elif _is_namedtuple(kind) and _loaded(_place(kind)) is kind and not hasattr(value, "__dict__"):
        return {"namedtuple": [*_place(kind), [encode_one(one, name) for name, one in zip(kind._fields, value)]]}
    elif kind.__module__ == "numpy":
        return _numpy(value, spare)
    return None


def decode(kind, body, decode_one, spare):
    """What was encoded as `{kind: body}`; KeyError where that is none of these."""
    if kind == "defaultdict":
        name, pairs = body
        factory = None if name is None else _FACTORIES[name]
        return collections.defaultdict(factory, _decoded_pairs(pairs, decode_one))
    if kind == "counter":
        return collections.Counter(dict(_decoded_pairs(body, decode_one)))
    if kind == "deque":
        return collections.deque(map(decode_one, body[1]), maxlen=body[0])
    if kind == "bytearray":
        return bytearray(base64.b64decode(body))
    if kind == "complex":
        return complex(*body)
    if kind in ("range", "slice"):
        return (range if kind == "range" else slice)(*map(decode_one, body))
    if kind in ("datetime", "time"):
        return getattr(datetime, kind).fromisoformat(body[0]).replace(fold=body[1])
    if kind == "date":
        return datetime.date.fromisoformat(body)
    if kind == "timedelta":
        return datetime.timedelta(*body)
    if kind in _TEXTS:
        # An exponent would be worked out, whatever its size.
        if kind == "fraction" and not re.fullmatch(r"-?\d+(/\d+)?", body):
            raise CheckpointError(f"the checkpoint has a fraction {body[:40]!r}")
        return _TEXTS[kind](body)
    if kind in _SPACES:
        return _SPACES[kind](**{name: decode_one(one) for name, one in body.items()})
    if kind == "path":
        return pathlib.Path(body)
    if kind == "purepath":
        return _PATHS[body[0]](body[1])
    if kind == "generator":
        generator = torch.Generator(body[0])
        generator.set_state(decode_one(body[1]))
        return generator
    if kind == "enum":
        return _member(*body)
    if kind == "namedtuple":
        module, name, values = body
        cls = _class(module, name)
        if not _is_namedtuple(cls) or len(cls._fields) != len(values):
            raise CheckpointError(f"{module}.{name} is no namedtuple of {len(values)} fields any more, as it was when this was saved")
        return tuple.__new__(cls, map(decode_one, values))
    if kind in ("strings", "times"):
        return _decoded_numpy(kind, spare, *body)
    raise KeyError(kind)


def _pairs(value, encode_one):
    return [[encode_one(key, ""), encode_one(one, str(key))] for key, one in value.items()]


def _decoded_pairs(pairs, decode_one):
    decoded = [(decode_one(key), decode_one(one)) for key, one in pairs]
    distinguishable(key for key, _ in decoded)
    return decoded


def _place(cls):
    return cls.__module__, cls.__qualname__


def _loaded(place):
    """The class of that name in a module that is loaded; None where there is none."""
    found = sys.modules.get(place[0])
    for name in place[1].split("."):
        # Not getattr(): a module or a class may compute what is asked for.
        found = vars(found).get(name) if isinstance(found, (types.ModuleType, type)) else None
    return found


def _class(module, name):
    found = _loaded((module, name))
    if not isinstance(found, type):
        raise CheckpointError(f"the checkpoint has a {module}.{name}, which is not loaded here: import {module} before restore()")
    return found


def _member(module, name, member):
    cls = _class(module, name)
    if not issubclass(cls, enum.Enum):
        raise CheckpointError(f"{module}.{name} is no Enum any more, as it was when this was saved")
    if isinstance(member, str):
        if member not in cls.__members__:
            raise CheckpointError(f"{module}.{name} has no member {member} any more, as it had when this was saved")
        return cls.__members__[member]
    if not issubclass(cls, enum.Flag) or type(member) is not int:
        raise CheckpointError(f"the checkpoint has a member of {module}.{name} without a name: another program made it")
    return cls(member)


def _is_namedtuple(cls):
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def _numpy(value, spare):
    """Strings, bytes, dates and times, alone or in arrays."""
    import numpy

    if not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.names is not None:
        return None
    array, alone = numpy.asarray(value), isinstance(value, numpy.generic)
    if type(value) is not numpy.ndarray and not alone:
        return None
    if array.dtype.kind in "US":
        items = array.ravel().tolist()
        if not spare.suffices(array.dtype, items):
            return None
        if array.dtype.kind == "S":
            items = [base64.b64encode(one).decode() for one in items]
        return {"strings": [array.dtype.str, list(array.shape), items, alone]}
    if array.dtype.kind in "mM":
        return {"times": [array.dtype.str, list(array.shape), array.ravel().view("int64").tolist(), alone]}
    return None


def _decoded_numpy(kind, spare, dtype, shape, items, alone):
    import numpy

    dtype = numpy.dtype(dtype)
    if dtype.kind not in ("US" if kind == "strings" else "mM"):
        raise CheckpointError(f"the checkpoint has {kind} of {dtype}: another program made it")
    if kind == "times":
        array = numpy.array(items, dtype="int64").view(dtype)
    else:
        items = [base64.b64decode(one) for one in items] if dtype.kind == "S" else items
        if not spare.suffices(dtype, items):
            raise CheckpointError(f"the checkpoint has {len(items)} {kind} of {dtype} that are next to empty: another program made it")
        array = numpy.array(items, dtype=dtype)
    return array.reshape(shape)[()] if alone else array.reshape(shape)
