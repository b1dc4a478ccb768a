"""What functions are made of: their code, what they close over, and what they reach of their modules."""

import argparse
import builtins
import dis
import functools
import importlib.util
import itertools
import operator
import os
import sys
import types
from typing import NamedTuple

from . import libraries
from .plain import is_a

_ROOTS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_NOTHING = {"CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL", "NOT_TAKEN", "RESUME"}
_DESCRIPTORS = (
    types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType,
)  # fmt: skip
# Code that has one of these reaches what cannot be foreseen.
_BLIND = {
    id(one): one.__name__
    for one in (eval, exec, globals, __import__, sys._getframe, importlib.import_module, os.getenv, os.getenvb)
}
_BLIND_NAMES = set("__builtins__ __globals__ __subclasses__ environ environb f_back f_globals f_locals getenv getenvb".split())
# And with these, or names like that, any attribute of what it has.
_ANY_ATTRIBUTE = {id(one) for one in (getattr, vars, dir, operator.attrgetter, operator.methodcaller)}
_ANY_NAMES = {"__dict__", "__getattribute__", "attrgetter", "getmembers", "methodcaller"}


class Code(NamedTuple):
    """`content`: what it does, in words. `names`: that it mentions. `roots`: the globals that it uses, each with the attributes
    that it takes of it. `imports`: level, module and names of what it imports, none where it takes the module."""

    content: str
    names: frozenset
    roots: frozenset
    imports: frozenset


def tell(walk, value):
    """Whether it was a function, a method, a module or a code object, and was digested."""
    if is_a(value, types.FunctionType):
        _function(walk, value)
    elif is_a(value, types.MethodType):
        walk.emit("method")
        walk.value(value.__func__)
        walk.value(value.__self__)
    elif is_a(value, types.BuiltinFunctionType, types.MethodWrapperType):
        _builtin(walk, value)
    elif is_a(value, *_DESCRIPTORS):
        walk.emit("descriptor", value.__name__)
        # That of a slot is digested with the object that has it.
        if not is_a(value, types.MemberDescriptorType):
            walk.value(value.__objclass__)
    elif is_a(value, types.ModuleType):
        follow(walk, value, ())
    elif is_a(value, types.CodeType):
        _code(walk, value)
    elif is_a(value, staticmethod, classmethod):
        walk.emit(type(value).__name__)
        walk.value(value.__func__)
    elif is_a(value, property):
        walk.emit("property")
        for one in (value.fget, value.fset, value.fdel):
            walk.value(one)
    elif type(value) is functools.partial:
        walk.emit("partial", *sorted(vars(value)))
        for part in (value.func, value.args, value.keywords, *(vars(value)[name] for name in sorted(vars(value)))):
            walk.value(part)
    elif callable(value) and libraries.is_named(value):
        # Compiled functions come in many kinds.
        walk.emit("function", value.__qualname__, libraries.about(value.__module__))
    else:
        return False
    return True


def _function(walk, function):
    module = function.__globals__.get("__name__")
    known = libraries.is_library(module)
    walk.emit("function", function.__qualname__, libraries.about(module) if known else module)
    if known and libraries.is_named(function):
        return _reach(walk, function)
    walk.later(_within, function, known)


def _within(walk, function, known):
    for part in (function.__defaults__, function.__kwdefaults__, function.__dict__ or None):
        walk.value(part)
    for cell in function.__closure__ or ():
        try:
            walk.value(cell.cell_contents)
        except ValueError:
            walk.emit("empty")
    code = _code(walk, function.__code__)
    if known:
        # What was decorated by a library; of its own globals that one knows.
        return
    for root, chain in sorted(code.roots):
        walk.emit("global", root)
        if root in function.__globals__:
            follow(walk, function.__globals__[root], chain)
        elif hasattr(builtins, root):
            follow(walk, getattr(builtins, root), chain)
    for level, name, wanted in sorted(code.imports):
        _imported(walk, function, level, name, wanted, code.names)


def _code(walk, code):
    analysed = _analysed(code)
    walk.emit(analysed.content)
    walk.mention(analysed.names)
    if analysed.names & _ANY_NAMES:
        walk.all_names = True
    for name in sorted(analysed.names & _BLIND_NAMES):
        _blind(walk, name, code)
    return analysed


def _blind(walk, name, value):
    walk.cannot(value, f"its code uses {name}")
    if "env" in name:
        walk.value(dict(os.environ))


def _reach(walk, value):
    """Notes what code that has this function of a library may reach with it."""
    if id(value) in _BLIND:
        _blind(walk, _BLIND[id(value)], value)
    if id(value) in _ANY_ATTRIBUTE:
        walk.all_names = True


def _builtin(walk, value):
    owner = value.__self__
    walk.emit("builtin", value.__qualname__)
    _reach(walk, value)
    if owner is None or isinstance(owner, types.ModuleType):
        module = value.__module__ or getattr(owner, "__name__", None)
        walk.emit(*libraries.about(str(module)))
        if not libraries.is_library(module):
            walk.cannot(value, f"the code of {value.__qualname__} is compiled")
    else:
        walk.value(owner)


def follow(walk, value, chain):
    """Tells what a chain of attributes leads to from a global; of a module or a namespace no more than that."""
    while True:
        if is_a(value, types.ModuleType):
            within = vars(value)
            known = libraries.is_library(value.__name__)
            walk.emit("module", *(libraries.about(value.__name__) if known else (value.__name__,)))
            if not chain:
                if not known:
                    return walk.cannot(value, f"its code uses the module {value.__name__} as a whole")
                if not any(value is other for other, _ in walk.members):
                    walk.members.append((value, set(within)))
                return
            if chain[0] not in within:
                if not known and "__getattr__" in within:
                    walk.cannot(value, f"the module {value.__name__} makes its attributes")
                return
        elif type(value) in (argparse.Namespace, types.SimpleNamespace) and chain and chain[0] in vars(value):
            within, known = vars(value), False
        elif value is sys.modules:
            return walk.cannot(value, "its code uses all modules")
        else:
            return walk.value(value)
        value, chain = within[chain[0]], chain[1:]
        walk.emit("of it")
        if known and callable(value) and libraries.is_library(type(value).__module__) and not _is_made(value):
            # Functions of libraries come in many kinds.
            _reach(walk, value)
            return


def _is_made(value):
    """Whether it may be somebody's own, put into a library's place."""
    kinds = types.FunctionType, types.MethodType, type, functools.partial
    return is_a(value, *kinds) and not libraries.is_named(value)


def _imported(walk, function, level, name, wanted, names):
    if level:
        package = function.__globals__.get("__package__") or ""
        try:
            name = importlib.util.resolve_name("." * level + name, package)
        except (ImportError, ValueError):
            return walk.cannot(function, "its code imports what is not known")
    walk.emit("import", name)
    module = sys.modules.get(name if wanted else name.partition(".")[0])
    if libraries.is_library(name):
        for one in sorted(wanted):
            if module is not None and one in vars(module):
                follow(walk, module, (one,))
        return
    if module is None:
        return walk.cannot(function, f"its code imports {name}, which is not loaded yet")
    if not wanted:
        walk.cannot(module, f"its code imports the module {name}")
    for one in sorted(wanted or names & set(vars(module))):
        follow(walk, module, (one,))


@functools.lru_cache(maxsize=4096)
def _analysed(code):
    names, roots, imports = set(code.co_names), set(), set()
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NOTHING]
    for number, step in enumerate(steps):
        if step.opname in _ROOTS:
            roots.add((step.argval, _chain(steps[number + 1 :])))
        elif step.opname == "IMPORT_NAME":
            level, wanted = steps[number - 2].argval, steps[number - 1].argval
            imports.add((level, step.argval, tuple(wanted or ())))
    constants = []
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            inner = _analysed(one)
            names |= inner.names
            roots |= inner.roots
            imports |= inner.imports
            constants.append(inner.content)
        else:
            constants.append(_constant(one))
    content = (
        code.co_name, code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags,
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, getattr(code, "co_exceptiontable", b""),
    )  # fmt: skip
    return Code(repr(content), frozenset(names), frozenset(roots), frozenset(imports))


def _chain(steps):
    return tuple(step.argval for step in itertools.takewhile(lambda step: step.opname in _ATTRIBUTES, steps))


def _constant(value):
    """In words that are the same in each process."""
    if is_a(value, set, frozenset):
        return type(value).__name__, sorted(repr(_constant(one)) for one in value)
    if is_a(value, tuple):
        return "tuple", [_constant(one) for one in value]
    if type(value) is int:
        return hex(value)
    return type(value).__name__, repr(value)
