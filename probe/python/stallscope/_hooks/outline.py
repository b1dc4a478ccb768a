"""What workers are made with, as it looks from outside, so that a change by the script shows: those that are added later would have
something else than those of their iterator.

That is the data set, the functions that are given with it, what the code of both names (globals, what a closure holds, attributes of
classes), and what a forked process has of its parent: the working folder, the environment, modes of torch.

Only looked at: no code of the script's runs, and nothing that is large is gone through. What changes within a very long list, a large
array or an object without attributes does not show.
"""

import functools
import os
import random
import sys
import types
import zlib

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_SHORT = 16
_MOST = 4000
# Elements of what is longer than short, and so many bytes of arrays for one.
_MOST_ELEMENTS = 100_000
_BYTES = 32
# What objects of these hold changes as they are used.
_RESTLESS = frozenset(("_io", "_thread", "asyncio", "concurrent", "io", "logging", "multiprocessing", "socket", "threading", "weakref"))


def of(*things, but=()):
    """A value that compares equal for as long as nothing changed that shows, but for what is within `but`."""
    return tuple(_Look(things, but).found)


def of_workers(dataset, collate_fn, init_fn):
    """Of all that workers are made with."""
    return of(dataset, collate_fn, init_fn), tuple(_around())


def _around():
    """What a forked process has of this thread."""
    try:
        yield os.getcwd()
    except OSError:
        yield None
    yield hash(frozenset(os.environ.items()))
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
    def __init__(self, things, but):
        self.found = []
        self.seen = set(map(id, but))
        self.elements = _MOST_ELEMENTS
        # To be looked at, the next one last.
        self.waiting = list(reversed(things))
        while self.waiting and len(self.found) < _MOST:
            self.look(self.waiting.pop())

    def look(self, value):
        kind = type(value)
        if kind in _PLAIN:
            self.found.append((kind, value))
            return
        # The type, too: another object may come to lie where one was.
        self.found.append((kind, id(value)))
        if id(value) in self.seen or kind is types.ModuleType:
            return
        self.seen.add(id(value))
        if kind in (list, tuple, dict, set, frozenset):
            self.container(value)
        elif kind is types.FunctionType:
            self.function(value)
        elif kind is types.MethodType:
            self.method(value.__func__, value.__self__)
        elif kind is functools.partial:
            self.waiting += [value.keywords, value.args, value.func]
        elif isinstance(value, type):
            self.type(value)
        else:
            self.object(value)

    def container(self, value):
        self.found.append(len(value))
        if len(value) > self.elements:
            return
        each = [one for item in value.items() for one in item] if type(value) is dict else list(value)
        if len(value) <= _SHORT and type(value) not in (set, frozenset):
            self.waiting += reversed(each)
            return
        self.elements -= len(value)
        shallow = [one if type(one) in _PLAIN else id(one) for one in each]
        # No order of a set's is the same twice.
        self.found.append(frozenset(shallow) if type(value) in (set, frozenset) else tuple(shallow))

    def function(self, value):
        if not _is_scripts(value.__module__):
            return
        for cell in value.__closure__ or ():
            try:
                self.waiting.append(cell.cell_contents)
            except ValueError:
                # Not set yet.
                continue
        self.waiting += [value.__defaults__, value.__kwdefaults__]
        names = _named(value.__code__)
        self.waiting += [value.__globals__[name] for name in sorted(names) if name in value.__globals__]

    def method(self, function, owner):
        """Of its object what it names: a trainer's would be all of training."""
        self.waiting.append(function)
        if type(function) is not types.FunctionType:
            return
        own = getattr(owner, "__dict__", {})
        for name in sorted(_named(function.__code__)):
            if name in own:
                self.waiting.append(own[name])
                continue
            found = next((vars(one)[name] for one in type(owner).__mro__ if name in vars(one)), None)
            found = _function_of(found)
            if type(found) is types.FunctionType and id(found) not in self.seen:
                self.method(found, owner)
                self.seen.add(id(found))
            elif found is not None:
                self.waiting.append(found)

    def type(self, value):
        for one in filter(lambda one: _is_scripts(one.__module__), value.__mro__):
            held = [inner for name, inner in vars(one).items() if type(inner) is types.FunctionType or not name.startswith("__")]
            self.waiting += [_function_of(inner) for inner in reversed(held)]

    def object(self, value):
        root = type(value).__module__.partition(".")[0]
        if root in _RESTLESS:
            return
        state = _generator_state(value)
        if state is not None:
            self.found.append(state)
            return
        if type(value).__module__ == "numpy":
            self.array(value)
            return
        # Of tensors: how often they were written to.
        self.found.append(getattr(value, "_version", None) if root == "torch" else None)
        self.waiting.append(type(value))
        for name, one in reversed(list(getattr(value, "__dict__", {}).items())):
            self.waiting += [one, name]

    def array(self, value):
        elements = getattr(value, "nbytes", 0) // _BYTES
        if elements <= self.elements and not getattr(value, "dtype", None).hasobject:
            self.elements -= elements
            self.found.append(zlib.crc32(value.tobytes()))


def _generator_state(value):
    """Of a random generator; None of anything else."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return hash(random.Random.getstate(value))
    if type(value) is sys.modules["torch"].Generator:
        return bytes(value.get_state().tolist()) if value.device.type == "cpu" else value.initial_seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and type(value) is numpy.Generator:
        return repr(value.bit_generator.state)
    if numpy is not None and type(value) is numpy.RandomState:
        return repr(value.get_state(legacy=False))
    return None


def _function_of(held):
    """The function of what a class holds, where there is one around it."""
    if isinstance(held, (staticmethod, classmethod)):
        return held.__func__
    return held.fget if isinstance(held, property) else held


def _named(code):
    """What the code of a function names."""
    names = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            names |= _named(one)
    return names


@functools.lru_cache(1000)
def _is_scripts(module):
    """Whether a module is the script's own, and not of Python's or of a library."""
    root = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None)
    if root in _STANDARD or not root or root == "stallscope":
        return False
    return file is None or "-packages" not in file


# Python 3.9 does not say which those are.
_STANDARD = frozenset(getattr(sys, "stdlib_module_names", ())) - {"__main__"} | {"builtins"}
