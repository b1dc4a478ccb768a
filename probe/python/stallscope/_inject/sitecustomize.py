"""Brings the shim into a Python process without changing its script.

The launcher puts this folder first on PYTHONPATH. Must run on any Python there is, and must leave no trace where
there is nothing to measure.
"""

import os
import sys


def _start(folder):
    if not os.environ.get("STALLSCOPE_SOCKET") or sys.version_info < (3, 9):
        return
    # Only our own package is imported while its folder is on the path: the job's path stays as it was.
    package_root = os.path.dirname(os.path.dirname(folder))
    sys.path.insert(0, package_root)
    try:
        from stallscope._hooks import install
    finally:
        sys.path.remove(package_root)
    install()


def _hand_on(folder):
    """Runs the sitecustomize that this one stands before, as Python itself would have."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != folder]
    sys.path_importer_cache.pop(folder, None)
    if sys.version_info < (3, 5):
        import imp

        try:
            found = imp.find_module("sitecustomize", sys.path)
        except ImportError:
            return
        # Python 2 drops what a module's names hold with the module, and this function is still running.
        sys.modules["_stallscope_inject"] = sys.modules.pop("sitecustomize", None)
        imp.load_module("sitecustomize", *found)
        return
    from importlib._bootstrap import module_from_spec
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_FOLDER = os.path.dirname(os.path.realpath(__file__))
try:
    _start(_FOLDER)
except Exception:
    # The job comes first; the reason is printed on request.
    if os.environ.get("STALLSCOPE_DEBUG"):
        sys.excepthook(*sys.exc_info())
_hand_on(_FOLDER)
