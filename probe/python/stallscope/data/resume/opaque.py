"""What samplers of the script's own hold that is no plain data, and so is not kept, but can be seen to change: deques and other containers, objects
of the script's, generators in a list, what a function encloses.
"""

import collections
import functools
import itertools
import marshal
import random
import sys
import time
import types
import zlib

import torch

from stallscope import _random
from stallscope._hooks.knobs import raised_by_signal
from stallscope._hooks.outline import is_scripts

# To look takes some milliseconds: of more objects, or more numbers and texts in one container, nothing is seen.
_MOST, _MOST_NUMBERS, _DEEPEST = 4_000, 200_000, 6
_CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque)
# Those without attributes.
_BARE = frozenset((collections.deque, collections.defaultdict, collections.Counter, collections.OrderedDict))
SCALARS = frozenset((bool, int, float, complex, str, bytes, type(None)))
_ITERATORS: tuple = (type(iter([])), type(iter(())), type(iter(range(0))))


# Each save looks: a look that takes the thread longer than this is made again when so many times as long has passed.
_SHORT_NS, _APART = 500_000, 1_000


class Seen:
    """Of a value, what was seen of it; `content` is None where nothing was. `scalars`: what it holds, where that is numbers and texts alone."""

    def __init__(self, kind, content, scalars=None):
        self.kind, self.content, self.scalars = kind, content, scalars
        self._changed, self._again_ns = False, 0

    def is_of(self, value):
        """Whether it is one of the same kind."""
        return self.kind == _name(type(value))

    def has_changed(self, value, digest, within):
        if self.content is None or not self.is_of(value):
            return False
        if self.scalars is not None:
            elements = _in_order(value)
            # Which are the same objects mostly, so that this takes a tenth of the time. What came since may be anything, and is not compared: an
            # array has no truth, and an object of the script's runs its code.
            if SCALARS.issuperset(map(type, elements)) and elements == self.scalars:
                return False
        if time.monotonic_ns() < self._again_ns:
            return self._changed
        # Not by the clock: a busy machine is no reason to look less often.
        began_ns = time.thread_time_ns()
        self._changed = seen(value, digest, within).content not in (self.content, None)
        took_ns = time.thread_time_ns() - began_ns
        self._again_ns = time.monotonic_ns() + took_ns * _APART if took_ns > _SHORT_NS else 0
        return self._changed


def seen(value, digest, within):
    """`digest`: of plain data, and None of what is none. `within`: the sampler that has it, which is not looked into."""
    look = _Look(digest, within)
    try:
        # Generators themselves are kept.
        content = None if is_generator(value) else look.of(value)
    except Exception as error:
        if raised_by_signal(error):
            raise
        # Too much, or an object whose own code raises.
        content = None
    if content is None or not look.sees:
        return Seen(_name(type(value)), None)
    return Seen(_name(type(value)), zlib.crc32(repr(content).encode()), _scalars(value))


def _scalars(value):
    """What a container holds, in a list, where that is immutable and all that can be seen of it; else None. To keep anything else would keep
    objects of the script's alive."""
    if type(value) not in _BARE:
        return None
    elements = _in_order(value)
    return elements if SCALARS.issuperset(map(type, elements)) else None


def _in_order(container):
    return [*dict.keys(container), *dict.values(container)] if issubclass(type(container), dict) else list(container)


class _TooMuchError(Exception):
    pass


class _Look:
    def __init__(self, digest, within):
        self.digest, self.left = digest, _MOST
        # Numbers by identity, of objects that live as long.
        self.known, self.alive = {id(within): 0}, [within]
        # Whether there is anything that may change.
        self.sees = False

    def of(self, value, depth=0):
        kind = type(value)
        self.left -= 1
        if self.left < 0 or depth > _DEEPEST:
            raise _TooMuchError
        is_container = issubclass(kind, _CONTAINERS)
        plain = None if is_container else self.digest(value)
        if plain is not None:
            return plain
        if id(value) in self.known:
            return self.known[id(value)]
        self.known[id(value)] = len(self.known)
        self.alive.append(value)
        content = self._content(value, kind, is_container, depth + 1)
        if content is None:
            return _name(kind)
        self.sees = True
        return _name(kind), content

    def _content(self, value, kind, is_container, depth):
        """None of what is not looked into, or has nothing that may change."""
        drawn = _generator_state(value)
        if drawn is not None:
            return drawn
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            return [self.of(one, depth) for one in _enclosed(value)] or None
        if kind is itertools.count:
            return repr(value)
        if kind in _ITERATORS:
            return [self.of(one, depth) for one in value.__reduce__()[1:]]
        if not is_container and not _is_a_scripts(kind):
            return None
        held = [(name, self.of(one, depth)) for name, one in attributes(value).items()]
        return [self._elements(value, kind, depth), held] if is_container else held

    def _elements(self, value, kind, depth):
        elements = _in_order(value)
        if _MOST < len(elements) <= _MOST_NUMBERS:
            try:
                # Of an older version: newer ones tell how often an object is referred to, too.
                return zlib.crc32(marshal.dumps(elements, 2))
            except ValueError:
                raise _TooMuchError from None
        parts = [self.of(one, depth) for one in elements]
        # A set's order is its own.
        return sorted(parts, key=repr) if issubclass(kind, (set, frozenset)) else parts


def _name(kind):
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_a_scripts(kind):
    """Whether objects of this class are looked into: not data sets, nor what a Checkpointer may have been given, which change as training goes on."""
    if kind is types.SimpleNamespace:
        return True
    if not is_scripts(kind.__module__) or issubclass(kind, (torch.utils.data.Dataset, type, types.ModuleType)):
        return False
    return not (hasattr(kind, "state_dict") or hasattr(kind, "__getitem__"))


def attributes(value):
    """Those that an object has itself, in its slots too."""
    found = {}
    for kind in reversed(type(value).__mro__):
        for name, one in kind.__dict__.items() if "__slots__" in kind.__dict__ else ():
            if isinstance(one, types.MemberDescriptorType):
                try:
                    found[name] = one.__get__(value, type(value))
                except AttributeError:
                    # Not set.
                    pass
    found.update(getattr(value, "__dict__", None) or {})
    return found


def _enclosed(function):
    if isinstance(function, functools.partial):
        return function.func, *function.args, *function.keywords.values()
    if isinstance(function, types.MethodType):
        return function.__func__, function.__self__
    return () if function.__closure__ is None else [one for one in map(_content, function.__closure__) if one is not None]


def _content(cell):
    try:
        return cell.cell_contents
    except ValueError:
        # Not set yet.
        return None


def is_generator(value):
    return issubclass(type(value), _generators())


def _generators():
    numpy = sys.modules.get("numpy")
    return (torch.Generator, random.Random) if numpy is None else (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)


def _generator_state(value):
    """None of what is no generator, or has its state on a device."""
    kind = type(value)
    if not is_generator(value) or issubclass(kind, random.SystemRandom):
        return None
    if issubclass(kind, torch.Generator):
        return zlib.crc32(_random.generator_bytes(value)) if value.device.type == "cpu" else None
    if issubclass(kind, random.Random):
        return zlib.crc32(repr(random.Random.getstate(value)).encode())
    numpy = sys.modules["numpy"]
    state = value.bit_generator.state if hasattr(value, "bit_generator") else value.get_state(legacy=False)
    with numpy.printoptions(threshold=sys.maxsize):
        return zlib.crc32(repr(state).encode())
