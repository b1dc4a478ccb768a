"""What an object is: its class, its attributes and slots, and what a class in C keeps for it."""

import collections
import copyreg
import dataclasses
import enum
import functools
import io
import itertools
import logging
import os
import pathlib
import random
import sys
import types

import torch
import torch.storage

from stallscope._hooks.knobs import raised_by_signal

from . import arrays, code, libraries
from .plain import NUMBERS, is_a

# The least that an element of a container counts of what is looked at.
_ELEMENT_BYTES = 8
_POINTER = object.__basicsize__ // 2
# What classes of Python's own hold, be they subclassed or not.
_CONTENTS = {
    dict: lambda value: list(dict.items(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: list(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: set(frozenset.__iter__(value)),
    int: lambda value: int.__index__(value),
    float: lambda value: float.hex(value),
    complex: lambda value: complex.__repr__(value),
    str: lambda value: str.__str__(value),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytes(memoryview(value)),
    collections.deque: lambda value: [vars(collections.deque)["maxlen"].__get__(value), list(collections.deque.__iter__(value))],
    collections.OrderedDict: lambda value: list(dict.items(value)),
    collections.defaultdict: lambda value: [vars(collections.defaultdict)["default_factory"].__get__(value), list(dict.items(value))],
}
_STORAGES = tuple(one for name, one in vars(torch.storage).items() if name in ("TypedStorage", "UntypedStorage"))
_ALIASES = tuple(getattr(types, name) for name in ("GenericAlias", "UnionType") if hasattr(types, name))
_PLACES = (type(None), types.GetSetDescriptorType)
# Their __reduce__ is deprecated, or no account of what they hold.
_NO_REDUCTION = ("itertools", "_io", "_pyio")
# What a class has of itself, without anybody's asking for it.
_NOT_USED = frozenset(
    """
    __abstractmethods__ __annotate__ __annotate_func__ __annotations__ __annotations_cache__ __dataclass_params__ __dict__ __doc__
    __firstlineno__ __match_args__ __module__ __orig_bases__ __parameters__ __qualname__ __slotnames__ __static_attributes__
    __type_params__ __weakref__ _abc_impl
    """.split()
)
# What is called where an object is made, and not where it is used.
_MAKING = frozenset(
    "__init__ __new__ __post_init__ __init_subclass__ __set_name__ __prepare__ __class_getitem__".split()
)
# What a subclass may have of its own by which the reduction of a class of a library gives something else, takes what it
# goes through, or does not end.
_REDUCING = (
    *("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"),
    *("__iter__", "__len__", "__getitem__", "__getattribute__", "__getattr__", "__class__", "items", "keys", "values"),
)
# Of these nothing calls a method by itself.
_BASES = ("Dataset", "IterableDataset", "Generic", "Protocol", "ABC", "object")


def tell(walk, value):
    """Tells any object but numbers, texts and Python's own containers."""
    if is_a(value, type):
        walk.made.add(value)
        if value is type:
            # Code that asks for an object's class may make another one of it.
            walk.mention(_MAKING)
        return kind(walk, value)
    if code.tell(walk, value) or _special(walk, value):
        return
    kind(walk, type(value))
    if arrays.tell(walk, value):
        return _attributes(walk, value)
    if type(value).__module__.partition(".")[0] == "pandas" and libraries.is_named(type(value)):
        # Its own attributes are caches, and weak references to itself.
        _reduced(walk, value)
        return _attributes(walk, value, but=lambda name: name.startswith("_"))
    _hidden(walk, value)
    _attributes(walk, value)


def kind(walk, of):
    """Tells a class: of a library its name, of all others what they are made of; and those that it is made from."""
    for one in of.__mro__:
        known = libraries.is_library(one.__module__) and libraries.is_named(one)
        walk.emit("class", one.__qualname__, libraries.about(one.__module__) if known else one.__module__)
        if not known and not any(one is other for other, _ in walk.members):
            walk.members.append((one, _members(one)))
            kind(walk, type(one))


def _members(of):
    names = {name for name in vars(of) if isinstance(name, str)}
    if issubclass(of, enum.Enum):
        # What Python's own class notes of it, as _member_map_, comes of its members.
        names -= {name for name in names if name[0] == name[-1] == "_" and not name.startswith("__")}
    return names


def mentioned(walk):
    """Tells what of classes and modules may be meant by names in the code so far. Whether there was any."""
    found = False
    for number, (of, names) in enumerate(list(walk.members)):
        used = sorted(name for name in names if _is_used(walk, of, name))
        names.difference_update(used)
        for name in used:
            walk.emit("member", number, name)
            if isinstance(of, types.ModuleType):
                code.follow(walk, of, (name,))
            else:
                walk.value(vars(of)[name])
        found = found or bool(used)
    return found


def _is_used(walk, of, name):
    if name in walk.names or isinstance(of, types.ModuleType):
        return name in walk.names
    if name in _MAKING:
        return of in walk.made
    if name in _NOT_USED:
        return False
    if walk.all_names or (name.startswith("__") and name.endswith("__")):
        return True
    # Of other classes than the object's own a library may call what nobody's code mentions.
    return walk.root is None or of not in walk.root.__mro__ or _calls_all(walk.root)


def _calls_all(of):
    """Whether a class of a library that it is made from may call whatever it has."""
    bases = [one for one in of.__mro__ if libraries.is_library(one.__module__)]
    return any(one.__name__ not in _BASES and one not in _CONTENTS for one in bases)


def _special(walk, value):
    """Whether it was of a kind whose attributes do not say what it is."""
    if is_a(value, logging.Logger, logging.LoggerAdapter):
        # What is logged is nothing that a sample is made of.
        walk.emit("logger", value.name)
    elif libraries.is_named(type(value)) and _is_generator(value):
        walk.emit("generator", type(value).__name__)
        walk.drawn_from(value, _reduced)
    elif is_a(value, pathlib.PurePath) and libraries.is_named(type(value)):
        walk.emit("path", type(value).__name__, os.fspath(value))
    elif is_a(value, enum.Enum):
        walk.emit("enumerated", value._name_)
        kind(walk, type(value))
        walk.value(value._value_)
        _attributes(walk, value, but={"_name_", "_value_", "__objclass__", "_sort_order_"}.__contains__)
    elif is_a(value, type(os.environ)):
        walk.cannot(value, "its code uses the environment")
        walk.value(dict(value))
    elif is_a(value, *_STORAGES):
        walk.cannot(value, "it holds a storage")
    elif is_a(value, io.IOBase.__base__):
        walk.cannot(value, "it holds an open file")
    elif is_a(value, functools._lru_cache_wrapper):
        walk.emit("cached")
        walk.value(value.__wrapped__)
        if value.cache_info().currsize:
            walk.cannot(value, f"{value.__wrapped__.__qualname__} remembers what it gave")
    elif is_a(value, functools.cached_property) and libraries.is_named(type(value)):
        walk.emit("cached property", value.attrname)
        walk.value(value.func)
    elif is_a(value, types.MappingProxyType):
        walk.emit("proxy")
        walk.value(dict(value))
    elif is_a(value, dataclasses.Field):
        walk.emit("field", value.name)
        for one in (value.default, value.default_factory, value.metadata):
            walk.value(one)
    elif type(value).__module__ == "typing" or is_a(value, *_ALIASES):
        walk.emit("typing", _typing(value))
    else:
        return False
    return True


def _is_generator(value):
    kinds = [random.Random, torch.Generator]
    if "numpy.random" in sys.modules:
        kinds += [getattr(sys.modules["numpy.random"], name) for name in ("BitGenerator", "Generator", "RandomState")]
    return is_a(value, *kinds)


def _attributes(walk, value, but=lambda name: False):
    if any(type(vars(of).get("__dict__")) not in _PLACES for of in type(value).__mro__):
        return walk.cannot(value, "its attributes are something else")
    try:
        # A class may answer a look-up by name with another one.
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    # Numbers first: a glance may not come to what stands at the end.
    names = sorted((name for name in own if not but(name)), key=lambda name: (type(own[name]) not in NUMBERS, name))
    walk.emit("attributes", len(names))
    for name in names:
        walk.emit(name)
        walk.value(own[name])
    for of in type(value).__mro__:
        for name, member in sorted(vars(of).items()) if "__slots__" in vars(of) else ():
            if type(member) is types.MemberDescriptorType:
                walk.emit("slot", name)
                try:
                    walk.value(member.__get__(value))
                except AttributeError:
                    walk.emit("empty")


def _hidden(walk, value):
    """Tells what the object holds beside attributes and slots."""
    of = next((one for one in type(value).__mro__ if _hides(one)), None)
    if of is None:
        return
    if of in _CONTENTS:
        return walk.on_behalf(value, [_CONTENTS[of](value)])
    if not libraries.is_library(of.__module__) or of.__module__ in _NO_REDUCTION or _reduces_otherwise(type(value), of):
        return walk.cannot(value, f"it holds a {type(value).__name__}")
    _reduced(walk, value)


def _reduced(walk, value):
    """Tells what a class of a library says its objects are made of."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        reduced = [reduced] if isinstance(reduced, str) else reduced
        # Elements, and pairs of keys and values, come from iterators.
        most = max(0, walk.left_bytes // _ELEMENT_BYTES) + 1
        parts = [
            list(itertools.islice(part, most)) if number >= 3 and part is not None else part
            for number, part in enumerate(reduced)
        ]
    except Exception as error:
        if raised_by_signal(error):
            raise
        return walk.cannot(value, f"it holds a {type(value).__name__}")
    if any(type(part) is list and len(part) == most for part in parts[3:]):
        return walk.cannot(value, "it holds too much to look at")
    walk.on_behalf(value, parts)


def _hides(of):
    """Whether objects of this class have more in memory than those of its base, their slots, and a place for attributes."""
    base = of.__base__
    if base is None:
        return False
    slots = sum(type(one) is types.MemberDescriptorType for one in vars(of).values()) if "__slots__" in vars(of) else 0
    # A class of another base has none of its own, and where it is negative it lies elsewhere.
    places = sum(getattr(of, name) > 0 >= getattr(base, name) for name in ("__dictoffset__", "__weakrefoffset__"))
    known = -(-base.__basicsize__ // _POINTER) * _POINTER + _POINTER * (slots + places)
    return of.__basicsize__ > known or of.__itemsize__ != base.__itemsize__


def _reduces_otherwise(kind, of):
    """Whether somebody's own class says what objects of this one of a library are."""
    ours = kind.__mro__[: kind.__mro__.index(of)]
    return any(name in vars(one) for one in ours if not libraries.is_library(one.__module__) for name in _REDUCING)


def _typing(value):
    """What typing's values are called, by their own names alone: an annotation may hold any object."""
    if is_a(value, type) and not is_a(value, *_ALIASES):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value) in NUMBERS or type(value) in (str, bytes):
        return repr(value)
    given = getattr(value, "__args__", None) if type(value).__module__ in ("typing", "types") else None
    if type(given) is tuple:
        name = getattr(value, "__qualname__", None) or getattr(value, "_name", None) or type(value).__name__
        more = getattr(value, "__metadata__", ())
        return f"{name}[{', '.join(map(_typing, (*given, *more)))}]"
    if type(value) in (list, tuple):
        return f"[{', '.join(map(_typing, value))}]"
    return repr(value) if type(value).__module__ == "typing" else type(value).__qualname__
