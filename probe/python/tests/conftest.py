"""Which Pythons the jobs run on: the one that runs the tests, and Debian's with its old torch."""

import json
import subprocess
import sys
import warnings
from functools import lru_cache
from pathlib import Path

import pytest

PYTHONS = [sys.executable, "/usr/bin/python3"]
JOB = Path(__file__).with_name("job.py")


# Torch itself takes seconds to import.
ITS_VERSION = """
import importlib.util, json, runpy, sys
found = importlib.util.find_spec("torch") or sys.exit("no module named torch")
print(json.dumps(runpy.run_path(found.origin.replace("__init__.py", "version.py"))["__version__"]))
"""


@lru_cache(None)
def torch_version(python):
    """Version of `python`'s torch, or why there is none."""
    try:
        done = subprocess.run([python, "-c", ITS_VERSION], capture_output=True, text=True)
    except OSError as error:
        return None, str(error)
    return (json.loads(done.stdout), "") if done.returncode == 0 else (None, done.stderr.strip()[-200:])


@pytest.fixture(scope="session", params=PYTHONS, ids=["own-python", "system-python"])
def python(request):
    version, reason = torch_version(request.param)
    if version is None:
        message = f"SKIPPED: no jobs on {request.param}, it has no torch ({reason})"
        warnings.warn(message)
        pytest.skip(message)
    return request.param


def pytest_configure(config):
    config.addinivalue_line("markers", "own_python: for the newer torch alone: Debian's has nothing to try there, or nothing of it depends on torch")
    config.addinivalue_line("markers", "system_python: for Debian's old torch alone")


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if _is_for_its_python(item)]


def _is_for_its_python(item):
    python = item.callspec.params.get("python") if hasattr(item, "callspec") else None
    marks = {mark.name for mark in item.iter_markers()}
    return not (python == PYTHONS[0] and "system_python" in marks or python == PYTHONS[1] and "own_python" in marks)


@lru_cache(None)
def has(python, module):
    """Whether `python` finds this module, which is not imported: some take long at it."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def needs(module):
    """The Python that runs the tests, which has to have `module`."""
    if not has(sys.executable, module):
        pytest.skip(f"SKIPPED: no {module}; `scripts/setup.sh test` gets it")
    return sys.executable
