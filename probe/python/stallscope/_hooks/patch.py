"""Putting our function in the place of theirs."""

import functools


class UnknownShape(Exception):
    """torch is not built as expected here."""


def attribute(owner, name):
    """`owner`'s own attribute, or UnknownShape."""
    value = vars(owner).get(name)
    if value is None:
        raise UnknownShape(f"{getattr(owner, '__name__', owner)} has no {name}")
    return value


def replace(owner, name, make):
    """Sets `owner.name` to `make(original)`, looking just like the original."""
    original = attribute(owner, name)
    if getattr(original, "_stallscope", False):
        return
    static = isinstance(original, staticmethod)
    function = original.__func__ if static else original
    if not callable(function):
        raise UnknownShape(f"{name} of {getattr(owner, '__name__', owner)} cannot be called")
    wrapper = functools.wraps(function)(make(function))
    wrapper._stallscope = True
    setattr(owner, name, staticmethod(wrapper) if static else wrapper)
