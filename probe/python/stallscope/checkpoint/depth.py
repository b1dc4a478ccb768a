"""Why a state is nested deeper than Python can follow: mostly as it contains itself."""

import argparse
import types
from collections.abc import Mapping, Sequence, Set

# Of a name in a sentence.
_MOST_CHARACTERS = 80


def too_deep(value, name):
    """A sentence on `value`, which is called `name` in the checkpoint."""
    # Of the way down to where this looks: containers by id, each with its name, and what is left of each to look at.
    above, left = {id(value): name}, [(value, _within(value, name))]
    done, deepest = set(), name
    while left:
        container, rest = left[-1]
        for below, one in rest:
            if id(one) in above:
                return f"{_short(below)} is {_short(above[id(one)])} again: a state that contains itself cannot be saved; keep what it refers to under a name in its place"
            within = None if id(one) in done else _within(one, below)
            if within is not None:
                above[id(one)] = below
                left.append((one, within))
                deepest = max(deepest, below, key=len)
                break
        else:
            left.pop()
            del above[id(container)]
            done.add(id(container))
    return f"{_short(deepest)} is nested too deep to be saved: keep it in fewer lists and dicts within each other"


def _within(value, name):
    """(name, what is there) of each that a container holds; None where it is none."""
    if isinstance(value, (str, bytes, bytearray, range)):
        return None
    if isinstance(value, Mapping):
        return iter([(f"{name}/{key}", one) for key, one in value.items()])
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        return _within(vars(value), name)
    if isinstance(value, (Sequence, Set)):
        return iter([(f"{name}/{at}", one) for at, one in enumerate(value)])
    return None


def _short(name):
    return name if len(name) <= _MOST_CHARACTERS else f"{name[:_MOST_CHARACTERS]}…"
