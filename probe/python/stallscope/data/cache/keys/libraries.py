"""Which code is known by its name and version: Python's own, and that of libraries which nobody edits in place."""

import functools
import os
import sys
import sysconfig

_LIBRARIES = frozenset(
    """
    PIL albumentations cv2 lz4 msgpack numpy orjson pandas pyarrow scipy simplejpeg simplejson skimage sklearn stallscope torch
    torchaudio torchvision turbojpeg typing_extensions yaml zstandard
    """.split()
)
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})


def is_library(module):
    """Whether the module of this name belongs to one."""
    return isinstance(module, str) and _is_top(module.partition(".")[0])


def about(module):
    """Its name and the version of its library."""
    top = module.partition(".")[0]
    if top in _LIBRARIES:
        return module, str(getattr(sys.modules.get(top), "__version__", ""))
    return module, sys.version


def is_named(value):
    """Whether a function or a class is what a library has under the name that it bears."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not is_library(module) or not isinstance(name, str):
        return False
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return getattr(found, "__func__", found) is value


@functools.lru_cache(maxsize=1024)
def _is_top(top):
    # Somebody's own module may be called as one of Python's.
    if top in _LIBRARIES or top in sys.builtin_module_names:
        return True
    module = sys.modules.get(top)
    if module is None:
        return top in getattr(sys, "stdlib_module_names", ())
    path = getattr(module, "__file__", None)
    if path is None:
        return top in getattr(sys, "stdlib_module_names", ()) and not hasattr(module, "__path__")
    path = os.path.realpath(path)
    return path.startswith(_STANDARD) and "-packages" + os.sep not in path
