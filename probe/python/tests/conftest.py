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


@lru_cache(None)
def torch_version(python):
    """Version of `python`'s torch, or why there is none."""
    command = [python, "-c", "import json, torch; print(json.dumps(torch.__version__))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
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


def has(python, module):
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0
