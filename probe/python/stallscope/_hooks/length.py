"""How many samples a data set has, where to ask for it does nothing else: a `__len__` of the script's may draw, log, or open for good what it counts."""

import math
import sys
import types

from . import outline
from .knobs import raised_by_signal

# What code that only counts names, beside what its object holds: functions, and attributes and methods of arrays.
_COUNTING = frozenset(("abs", "ceil", "floor", "int", "len", "max", "min", "shape", "size", "sum"))
_COUNTED = (*outline.PLAIN, *outline.CONTAINERS)


def of(dataset):
    """None where it has none, or to ask for it might do something."""
    if not is_asked_freely(dataset):
        return None
    try:
        return len(dataset)
    except Exception as error:
        if raised_by_signal(error):
            raise
        return None


def is_asked_freely(dataset):
    """Whether `len(dataset)` is known to run no code of the script's but such as counts what the data set holds."""
    dataset = outline.scripts_own(dataset)
    subset = sys.modules["torch.utils.data"].Subset
    kind = type(dataset)
    method = next((vars(one)["__len__"] for one in kind.__mro__ if "__len__" in vars(one)), None)
    if type(method) is not types.FunctionType or not outline.is_scripts(method.__module__):
        # Of Python's, or of a library.
        return method is not None and (kind is not subset or is_asked_freely(dataset.indices))
    code, own = method.__code__, outline.own_attributes(dataset)
    return not code.co_freevars and all(_only_counts(name, own, method.__globals__) for name in code.co_names)


def _only_counts(name, own, names):
    if name in own:
        held = type(own[name])
        return held in _COUNTED or not outline.is_scripts(held.__module__)
    if name in names:
        return type(names[name]) is int or names[name] is math
    return name in _COUNTING
