"""What the code of functions names, and whose it is."""

import functools
import itertools
import sys
import types

# Code with one of these names may read any attribute of its object.
ANY_ATTRIBUTE = frozenset(("getattr", "vars", "__dict__", "__getattribute__"))
# And with one of these, what it has as a text.
BY_TEXT = ANY_ATTRIBUTE | {"globals", "locals", "modules", "import_module", "__import__"}


def function_of(held):
    """The function of what a class holds, where there is one around it."""
    if issubclass(type(held), (staticmethod, classmethod)):
        return held.__func__
    return held.fget if issubclass(type(held), property) else held


@functools.lru_cache(4096)
def named(code):
    """What the code of a function names."""
    names = set(code.co_names)
    if names & BY_TEXT:
        names.update(one for one in code.co_consts if type(one) is str)
    return frozenset(names.union(*(named(one) for one in code.co_consts if type(one) is types.CodeType)))


@functools.lru_cache(4096)
def imported(code, package):
    """The names of modules that code in this package may import: nobody looks which names are those, and how many dots stand before."""
    around = ["", *itertools.accumulate((package or "").split("."), "{}.{}".format)]
    return tuple({f"{one}.{name}".strip("."): None for name in sorted(named(code)) for one in around})


def home(value):
    """The name of a module, and of that which a function or a class is of; of anything else, of its type's."""
    kind = type(value)
    if kind is types.ModuleType:
        return vars(value).get("__name__")
    return (value if kind is types.FunctionType or issubclass(kind, type) else kind).__module__


def is_followed(module):
    """Whether it is the script's, or of Python, torch or numpy. What others have in their modules and classes does not show."""
    return type(module) is str and (is_scripts(module) or module.partition(".")[0] in _FOLLOWED)


@functools.lru_cache(1000)
def is_scripts(module):
    """Whether a module is the script's own, and not of Python's or of a library."""
    # In C it may be made by a descriptor.
    root = module.partition(".")[0] if type(module) is str else ""
    # Without the module's own code, which may make what it is asked for.
    file = getattr(sys.modules.get(root), "__dict__", {}).get("__file__")
    if root in _STANDARD or not root or root == "stallscope":
        return False
    return file is None or "-packages" not in file


# Python 3.9 does not say which those are.
_STANDARD = frozenset(getattr(sys, "stdlib_module_names", ())) - {"__main__"} | {"builtins"}
_FOLLOWED = _STANDARD | {"numpy", "stallscope", "torch"}
