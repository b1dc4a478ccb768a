"""What a data set looks like from outside, so that a change by the script shows: workers that are added later would have
another one than those of their iterator.

Only looked at: no code of the data set's runs, and nothing that is large is gone through. What changes within a long list, an
array or an object without attributes does not show.
"""

import itertools

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_SHORT = 16
_MOST = 500


def of(data_set):
    """A value that compares equal for as long as nothing changed that shows."""
    return tuple(itertools.islice(_looks(data_set, set()), _MOST))


def _looks(value, seen):
    kind = type(value)
    if kind in _PLAIN:
        yield kind, value
        return
    # The type, too: another object may come to lie where one was.
    yield kind, id(value)
    if id(value) in seen:
        return
    seen.add(id(value))
    if kind in (list, tuple, dict, set):
        yield len(value)
        if len(value) > _SHORT:
            return
        for one in itertools.chain.from_iterable(value.items()) if kind is dict else value if kind is not set else ():
            yield from _looks(one, seen)
        return
    # Of tensors: how often they were written to.
    yield getattr(value, "_version", None) if kind.__module__.startswith("torch") else None
    for name, one in getattr(value, "__dict__", {}).items() if not isinstance(value, type) else ():
        yield name
        yield from _looks(one, seen)
