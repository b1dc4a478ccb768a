"""Putting our function in the place of theirs."""

import functools
import weakref

# Owner (a module or a class) -> the names in it that are replaced. A mark on our function would not do: a wrapper that
# another tool puts around it hides the mark, and a second one of ours around theirs would count everything twice.
_replaced: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


class UnknownShape(Exception):
    """torch is not built as expected here."""


def attribute(owner, name):
    """`owner`'s own attribute, or UnknownShape."""
    value = vars(owner).get(name)
    if value is None:
        raise UnknownShape(f"{getattr(owner, '__name__', owner)} has no {name}")
    return value


def replace(owner, name, make):
    """Sets `owner.name` to `make(original)`, looking just like the original. Once: a second call does nothing."""
    original = attribute(owner, name)
    names = _replaced.setdefault(owner, set())
    if name in names:
        return
    static = isinstance(original, staticmethod)
    function = original.__func__ if static else original
    if not callable(function):
        raise UnknownShape(f"{name} of {getattr(owner, '__name__', owner)} cannot be called")
    wrapper = functools.wraps(function)(passed_over(make(function)))
    setattr(owner, name, staticmethod(wrapper) if static else wrapper)
    names.add(name)


def forget(owner):
    """What was replaced in `owner` is gone."""
    _replaced.pop(owner, None)


def passed_over(function):
    """`function`, whose frames `warnings` does not count: a warning that torch raises with a stacklevel names the line
    of the job that it would name without us, and is shown or silenced as that line's.

    `warnings` passes over files that have both words in their names, which are the import machinery's. Tools that follow a
    script line by line, as coverage does, pass over names in angle brackets, which they know to be no files; they fail where a file is not there.
    """
    code = function.__code__
    function.__code__ = code.replace(co_filename=f"<{code.co_filename} (as importlib._bootstrap)>")
    return function
