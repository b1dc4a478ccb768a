"""What workers are made with, as it looks from outside, so that a change by the script shows: those that are added later would have
something else than those of their iterator.

That is the data set, the functions that are given with it, what the code of both names (globals, what a closure holds, attributes of
classes), and what a forked process has of its parent: the working folder, the environment, modes of torch.

Only looked at: no code of the script's runs, and nothing that is large is gone through. What changes within more than so many elements
and objects, or behind an object that shows nothing of it (an iterator, a file, a queue), does not show.

So what an object is, is asked of its type: isinstance() asks the object's `__class__` as well, and a stand-in for something that is to be opened when it is
first used would open it here, before workers are forked that would then share it.
"""

import _thread
import array
import collections
import contextvars
import functools
import gc
import itertools
import os
import random
import sys
import threading
import types
import zlib

from . import modes
from .code_names import ANY_ATTRIBUTE, function_of, home, imported, is_followed, is_scripts, named

PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
# Python's own containers, be they subclassed or not. Of subclasses the first that fits says what they hold, without their own code.
CONTAINERS = (collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque)
_EXACT = PLAIN.union(CONTAINERS)
# Things that are looked at one by one; elements of containers, and so many bytes for one.
_MOST = 16_000
_MOST_ELEMENTS = 100_000
_DEEPEST = 16
_BYTES = 32
# What objects of these hold changes as they are used: without effect on others, or with some.
_IDLE = frozenset(("_thread", "logging"))
# But for what holds something else for each thread: this one's is looked at.
_LOCAL = _thread._local
# Of a cache of ours: what it has kept makes no other sample.
_KEPT = frozenset(("stallscope.data.cache.reader", "stallscope.data.prefetch.reader"))
_RESTLESS = frozenset(("_io", "_queue", "asyncio", "concurrent", "io", "multiprocessing", "socket", "threading", "weakref"))
# What shows all of what it is a view of, or is called on: a dict's `get`, say.
_VIEWS = frozenset((types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()), types.BuiltinMethodType, types.MethodWrapperType))
# Of `_io`, those of the system; the rest are in memory, which each process has for itself.
_FILES = frozenset(("FileIO", "BufferedReader", "BufferedRandom", "TextIOWrapper"))
_TAKEN_FROM = frozenset(("_socket", "socket", "sqlite3", "multiprocessing.connection", "multiprocessing.queues"))
# A lock is given back, and the next one goes on.
_MET_AT, _LOCKS = "multiprocessing.synchronize", frozenset(("SemLock", "Lock", "RLock"))
_QUEUES, _TAKES = ("multiprocessing.queues", "multiprocessing.connection"), frozenset(("get", "get_nowait", "recv", "recv_bytes", "acquire", "wait"))
_CONNECTION, _DATABASES = "a connection", "sqlite3"
# Of what a manager's process has, that from which things are taken.
_MANAGED, _TAKEN_BY, _PROXY = "multiprocessing.managers", "put", "BaseProxy"
_SHARED_VALUES = "multiprocessing.sharedctypes"
_COLUMNS = "pandas.core.internals.managers"
# Where what has no attributes is all that it ever will be, but for iterators.
_CONSTANT = frozenset(
    """
    builtins collections datetime decimal enum fractions functools numpy operator pathlib re stallscope torch types typing uuid
    zoneinfo
    """.split()
)


def of(*things):
    """A value that compares equal for as long as nothing changed that shows."""
    return tuple(_Look(things).found)


def of_whole(*things, partly=(), blind=frozenset()):
    """The same; None where something may change that does not show, and where code has a name in `blind`. Of an object in `partly`
    only what the code of `things` names."""
    look = _Look(things, partly)
    return tuple(look.found) if look.is_whole and not look.names & blind else None


def shared(*things):
    """What these hold in memory that other processes have, too: values and arrays of multiprocessing's, and tensors."""
    return _Look(things).shared


def taken(*things):
    """What these hold that one process alone can take from, each in words: open files that are read, connections, iterators."""
    return _Look(things, finds_taken=True).taken


def connections(*things):
    """Of these, what has another end, which does not know one process from another."""
    look = _Look(things, finds_taken=True)
    return [*(one for one in look.taken if one.startswith(f"{_CONNECTION} (")), *look.managed]


def meetings(*things):
    """Of these, what processes wait for one another by, or take turns at: each in words."""
    look = _Look(things, finds_taken=True)
    # What is only put into, as messages for a log are, nobody waits for.
    taken = look.queues + look.managed if look.names & _TAKES else []
    return [*look.met, *taken]


def of_workers(dataset, collate_fn, init_fn):
    """Of all that workers are made with."""
    return of(dataset, collate_fn, init_fn), tuple(_around())


def environment():
    """A value that is another one once a variable of the environment is."""
    return hash(frozenset(os.environ.items()))


def _around():
    """What a forked process has of this thread."""
    try:
        yield os.getcwd()
    except OSError:
        yield None
    yield environment()
    if "decimal" in sys.modules:
        yield repr(sys.modules["decimal"].getcontext())
    torch = sys.modules["torch"]
    for name in ("is_grad_enabled", "is_inference_mode_enabled", "get_default_dtype", "are_deterministic_algorithms_enabled"):
        yield getattr(torch, name, bool)()
    for name in ("_len_torch_function_stack", "_len_torch_dispatch_stack"):
        yield getattr(torch._C, name, bool)()
    if hasattr(torch, "get_autocast_dtype"):
        yield torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    else:
        # Deprecated since there are the others: each call is a warning.
        yield torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()


class _Look:
    def __init__(self, things, partly=(), finds_taken=False):
        self.found = []
        # Whether nothing can change but it shows.
        self.is_whole = True
        self.seen = set(map(id, partly))
        self.elements = _MOST_ELEMENTS
        # What other processes see when it is written to.
        self.shared = []
        # What gives something else to the next process that takes from it, in words; None where that is not asked, as a file of the script's own answers it.
        self.taken = [] if finds_taken else None
        # What stands for an object of a manager's process, and what processes wait at or take from, in words.
        self.managed = []
        self.met = []
        self.queues = []
        # What code names that was looked at, but for that which makes objects.
        self.names = set()
        # To be looked at, the next one last.
        self.waiting = list(reversed(things))
        with modes.unseen():
            self.look_at_all()
            for one in partly:
                self.named(self.names, one)
            self.look_at_all()

    def look_at_all(self):
        while self.waiting:
            if len(self.found) >= _MOST:
                self.is_whole = False
                return
            self.look(self.waiting.pop())

    def look(self, value):
        kind = type(value)
        if kind in PLAIN:
            self.found.append((kind, value))
            return
        # The type, too: another object may come to lie where one was.
        self.found.append((kind, id(value)))
        self.is_whole &= is_followed(home(value))
        if id(value) in self.seen or kind is types.ModuleType:
            return
        self.seen.add(id(value))
        if issubclass(kind, CONTAINERS):
            self.container(value)
        elif kind is types.FunctionType:
            self.function(value)
        elif kind is types.MethodType:
            self.method(value.__func__, value.__self__)
        elif kind is functools.partial:
            self.waiting += [value.keywords, value.args, value.func]
        elif kind in _VIEWS:
            self.waiting += gc.get_referents(value)
        elif issubclass(kind, type):
            self.type(value)
        elif _is_stand_in(kind):
            self.is_whole = False
        else:
            self.object(value)

    def container(self, value):
        """What it holds and what that holds, level by level."""
        if type(value) not in CONTAINERS:
            self.waiting += [type(value), *self.attributes(value)]
        level = [value]
        # Without a look at which were seen, which would take longer than all else.
        for _ in range(_DEEPEST):
            count = sum(map(_length, level))
            self.found.append(count)
            if count > self.elements:
                self.is_whole = False
                return
            self.elements -= count
            each = list(_held(level))
            kinds = set(map(type, each))
            if kinds <= PLAIN:
                self.found.append(tuple(each))
                return
            if kinds & PLAIN:
                self.found.append(tuple([one if type(one) in PLAIN else None for one in each]))
                each = [one for one in each if type(one) not in PLAIN]
            self.found.append(tuple(map(id, each)))
            level = [one for one in each if type(one) in CONTAINERS]
            if not kinds <= _EXACT:
                self.waiting += [one for one in reversed(each) if type(one) not in CONTAINERS]
            if not level:
                return
        self.is_whole = False

    def function(self, value):
        own = is_scripts(value.__module__)
        for cell in value.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:
                # Not set yet.
                continue
            # Of a library's function what the script gave it.
            if own or type(inner) in _EXACT or is_scripts(type(inner).__module__):
                self.waiting.append(inner)
        if not own:
            return
        self.waiting += [value.__defaults__, value.__kwdefaults__, value.__dict__]
        names, makes = named(value.__code__), value.__name__ == "__init__"
        if not makes:
            self.names |= names
        reached = [value.__globals__[name] for name in sorted(names) if name in value.__globals__]
        known = {id(one) for one in (None, sys.modules.get(value.__module__), *reached)}
        # And what it may import within, also of the packages that it is in.
        within = map(sys.modules.get, imported(value.__code__, value.__globals__.get("__package__")))
        for one in (*reached, *(one for one in within if id(one) not in known)):
            # What a library gives for the making of an object is no matter after that.
            if not makes or is_followed(home(one)):
                self.global_(one, names)

    def global_(self, value, names):
        """And what code that has these names gets by way of a module of the script's, and of modules in it."""
        self.waiting.append(value)
        modules, seen = [value], set()
        while modules:
            one = modules.pop()
            if type(one) is not types.ModuleType or id(one) in seen or not is_scripts(one.__name__):
                continue
            seen.add(id(one))
            held = [vars(one)[name] for name in sorted(names | {"__getattr__"}) if name in vars(one)]
            self.waiting += held
            modules += held

    def method(self, function, owner):
        """Of its object what it names: a trainer's would be all of training."""
        self.waiting.append(function)
        if type(function) is types.FunctionType:
            names = named(function.__code__)
            self.named(names, owner)
            if names & ANY_ATTRIBUTE:
                self.waiting += self.attributes(owner)

    def named(self, names, owner):
        """Of `owner` what goes by these names, and by those that its methods among them name."""
        own, done, following = own_attributes(owner), set(), [set(names)]
        while following:
            fresh = following.pop() - done
            done |= fresh
            for name in sorted(fresh):
                if name in own:
                    self.waiting.append(own[name])
                    continue
                found = next((vars(one)[name] for one in type(owner).__mro__ if name in vars(one)), None)
                found = function_of(found)
                if found is not None:
                    self.waiting.append(found)
                if type(found) is types.FunctionType:
                    following.append(named(found.__code__))

    def type(self, value):
        self.is_whole &= all(is_followed(one.__module__) for one in value.__mro__)
        for one in filter(lambda one: is_scripts(one.__module__), (*value.__mro__, *type(value).__mro__)):
            held = [inner for name, inner in vars(one).items() if type(inner) is types.FunctionType or not name.startswith("__")]
            self.waiting += [function_of(inner) for inner in reversed(held)]

    def object(self, value):
        root = type(value).__module__.partition(".")[0]
        if self.taken is not None:
            self.taken += _taken_from(value, root)
            for one in type(value).__mro__:
                met = {_MET_AT: self.met, **dict.fromkeys(_QUEUES, self.queues)}.get(one.__module__)
                if met is not None and one.__name__ not in _LOCKS:
                    met.append(f"a {one.__name__} of multiprocessing's")
                    break
            if any(one.__module__ == _MANAGED and one.__name__ == _PROXY for one in type(value).__mro__):
                self.managed.append(f"what a manager's process has ({type(value).__name__})")
        if type(value).__module__ in _KEPT or root in _IDLE and type(value) is not _LOCAL:
            return
        if root in _RESTLESS and type(value).__module__ != _SHARED_VALUES:
            self.is_whole = False
            # An event's flag, a semaphore's count. Those of a thread say how far it got.
            if root == "threading" and not issubclass(type(value), threading.Thread):
                self.waiting += [one for one in own_attributes(value).values() if type(one) in PLAIN]
            return
        if _is_processs_generator(value):
            # Which workers seed, and an order is watched for.
            return
        state = _generator_state(value)
        if state is not None:
            self.found.append(state)
        if type(value) is contextvars.ContextVar:
            self.waiting.append(value.get(None))
        if type(value).__module__ == _COLUMNS:
            # A column that is set anew lies elsewhere.
            self.found += [id(block.values) for block in getattr(value, "blocks", ())]
        elements = _elements(value)
        if elements is not None:
            self.elements_of(*elements)
        elif _shows_nothing(value) and (hasattr(type(value), "__next__") or root not in _CONSTANT and not is_scripts(root)):
            self.is_whole = False
        if _is_shared(value):
            self.shared.append(value)
        # Of tensors: how often they were written to.
        self.found.append(getattr(value, "_version", None) if root == "torch" else None)
        self.waiting.append(type(value))
        self.waiting += self.attributes(value)

    def elements_of(self, count, content):
        if count > self.elements:
            self.is_whole = False
            return
        self.elements -= count
        content = content()
        if isinstance(content, list):
            self.container(content)
        else:
            self.found.append(zlib.crc32(content))

    def attributes(self, value):
        """What it has of its own, each behind its name, the first last."""
        held = dict(own_attributes(value))
        for kind in filter(lambda one: is_scripts(one.__module__), type(value).__mro__):
            for name, slot in vars(kind).items():
                if type(slot) is types.MemberDescriptorType:
                    try:
                        held[name] = slot.__get__(value)
                    except AttributeError:
                        # Not set.
                        continue
        return [one for name, inner in reversed(held.items()) for one in (inner, name)]


def scripts_own(dataset):
    """The script's data set, also while an iterator is made that takes a stand-in of ours for it."""
    stand_in = sys.modules.get("stallscope.data.stand_in")
    stands = stand_in is not None and issubclass(type(dataset), stand_in.StandIn)
    return dataset._stallscope_dataset if stands else dataset


def own_attributes(value):
    """Its `__dict__`, without code of its class; {} where it has none."""
    if type(value) is _LOCAL:
        # Of a subclass that may run its __init__, once in each thread.
        return _LOCAL.__getattribute__(value, "__dict__")
    if _is_stand_in(type(value)):
        return {}
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _shows_nothing(value):
    try:
        object.__getattribute__(value, "__dict__")
    except AttributeError:
        return True
    return False


def _is_stand_in(kind):
    """Whether objects of this type say that they are of another one, as those do that stand for something which is made when it is first asked for."""
    return any("__class__" in vars(one) or type(vars(one).get("__dict__")) is property for one in kind.__mro__ if one is not object)


def _length(container):
    kind = type(container)
    return len(container) if kind in CONTAINERS else _base(kind).__len__(container)


def _held(containers):
    """Their elements, of a dict keys and values in turns."""
    kinds = set(map(type, containers))
    if len(kinds) > 1:
        return itertools.chain.from_iterable(_held([one]) for one in containers)
    base = _base(kinds.pop())
    if issubclass(base, dict):
        return itertools.chain.from_iterable(itertools.chain.from_iterable(map(base.items, containers)))
    return itertools.chain.from_iterable(map(base.__iter__, containers))


def _base(kind):
    return next(base for base in CONTAINERS if issubclass(kind, base))


def _elements(value):
    """Of an array of numbers: what they count as, and a function that gives them; None of anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(type(value), (numpy.ndarray, numpy.generic)):
        # A subclass may have its own of what follows.
        value = numpy.asarray(value)
        return value.nbytes // _BYTES, value.ravel().tolist if value.dtype.hasobject else value.tobytes
    if issubclass(type(value), (bytearray, array.array, memoryview)) or any(one.__module__ == "_ctypes" for one in type(value).__mro__):
        view = memoryview(value)
        return view.nbytes // _BYTES, view.tobytes
    return None


def _is_shared(value):
    if type(own_attributes(value).get("_wrapper")).__module__ == "multiprocessing.heap":
        return True
    torch = sys.modules["torch"]
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    return plain and value.device.type == "cpu" and value.is_shared()


def _taken_from(value, root):
    """In words, what it is that gives something else to the next process that takes from it; empty for anything else."""
    kind = type(value)
    if root == "_io":
        return [f"an open file ({kind.__name__})"] if kind.__name__ in _FILES and _is_read(value) else []
    is_queue = kind.__module__ == _MANAGED and hasattr(kind, _TAKEN_BY)
    # A subclass, as one that encrypts, is what it is made from.
    if is_queue or any(one.__module__ in _TAKEN_FROM or one.__module__.partition(".")[0] in _TAKEN_FROM for one in kind.__mro__):
        other_end = " to a database" if any(one.__module__ == _DATABASES for one in kind.__mro__) else ""
        return [f"{_CONNECTION}{other_end} ({kind.__name__})"]
    # What a script's own iterator holds is looked at.
    is_iterator = hasattr(kind, "__next__") and not is_scripts(kind.__module__)
    return [f"an iterator ({kind.__name__})"] if is_iterator else []


def _is_read(file):
    try:
        return not file.closed and file.readable()
    except ValueError:
        # What it was made of was taken from it.
        return False


def _is_processs_generator(value):
    """Whether it is one of the three that the modules `random`, numpy and torch draw from."""
    numpys = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    return value is random._inst or value is sys.modules["torch"].default_generator or numpys is not None and value is numpys


def _generator_state(value):
    """Of a random generator; None of anything else."""
    if issubclass(type(value), random.Random) and not issubclass(type(value), random.SystemRandom):
        return hash(random.Random.getstate(value))
    if type(value) is sys.modules["torch"].Generator:
        return bytes(value.get_state().tolist()) if value.device.type == "cpu" else value.initial_seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and type(value) is numpy.Generator:
        return repr(value.bit_generator.state)
    if numpy is not None and type(value) is numpy.RandomState:
        return repr(value.get_state(legacy=False))
    return None
