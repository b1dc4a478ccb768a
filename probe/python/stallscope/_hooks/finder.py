"""Runs a hook directly after a module of interest has been imported."""

import sys


class Finder:
    """A meta path finder that finds nothing itself; it only adds a last step to what the others find."""

    def __init__(self, targets):
        self.targets = targets

    def find_spec(self, name, path=None, target=None):
        if name not in self.targets:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                _hook_after(spec, name)
                return spec
        return None


def _hook_after(spec, name):
    """Other finders ask all finders, this one included, so that a loader, or one that wraps it, may come here twice."""
    from . import _failed, hook, renewed

    loader = spec.loader
    try:
        own = vars(loader).get("exec_module")
        if getattr(own, "_stallscope_hooks", None) == name:
            return
        exec_module = loader.exec_module

        def exec_and_hook(module):
            # Some loaders load several modules.
            if module.__name__ != name:
                return exec_module(module)
            # Taken off first, so that a reload, and code that inspects the loader, meet the plain one.
            if own is None:
                vars(loader).pop("exec_module", None)
            else:
                loader.exec_module = own
            renewed(module)
            exec_module(module)
            hook(name, module)

        exec_and_hook._stallscope_hooks = name
        # On the instance: the loader keeps its type and everything else it can do.
        loader.exec_module = exec_and_hook
    except Exception as error:
        _failed(name, error)
