"""What a signal's handler raises arrives, wherever of ours it runs."""

import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from collector import PACKAGE

from stallscope import _native  # noqa: E402
from stallscope._hooks import knobs
from stallscope.checkpoint.errors import CheckpointError
from stallscope.checkpoint.tree import Reader
from stallscope.data.cache import pool

pytestmark = pytest.mark.own_python

NUMBER = signal.SIGUSR2


class _Late(TimeoutError):
    pass


@pytest.fixture
def late():
    """Sends the signal whose handler raises."""

    def handler(number, frame):
        raise _Late

    before = signal.signal(NUMBER, handler)

    def comes(*_):
        os.kill(os.getpid(), NUMBER)
        return {}

    yield comes
    signal.signal(NUMBER, before)


def test_while_the_pool_starts(late, monkeypatch):
    monkeypatch.setattr(_native, "Space", late)
    with pytest.raises(_Late):
        pool.space("a", 1, 1 << 20, "minio")


def test_while_a_state_is_read(late, monkeypatch):
    reader = Reader({}, trust=False)
    monkeypatch.setattr(reader, "_decode", late)
    with pytest.raises(_Late):
        reader.decode({})
    monkeypatch.setattr(reader, "_decode", lambda _: 1 / 0)
    with pytest.raises(CheckpointError):
        reader.decode({})


MEETS = """
def meets(raises):
    try:
        raises()
        for _ in range(10**7):
            pass
    except Exception as error:
        return type(error), raised_by_signal(error)
"""


def test_what_another_thread_has_raised_here_arrives():
    ours = {"__name__": "stallscope.made_for_a_test", "raised_by_signal": knobs.raised_by_signal}
    exec(MEETS, ours)
    thread, error = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_Late)
    # As packages with deadlines do.
    raises = functools.partial(ctypes.pythonapi.PyThreadState_SetAsyncExc, thread, error)
    assert ours["meets"](raises) == (_Late, True)
    assert ours["meets"](functools.partial(int, "x")) == (ValueError, False)

    def scripts_own():
        raise _Late

    assert ours["meets"](scripts_own) == (_Late, False), "what we called has raised it"


@pytest.mark.parametrize("flag, found", [("-S", False), ("-s", True)])
def test_workers_of_an_interpreter_that_does_not_look_for_us_do_not_find_us(flag, found):
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('importable', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(module.by_workers('spawn'))\n"
    )
    package = Path(PACKAGE) / "stallscope"
    env = {"PYTHONPATH": str(package / "_inject"), "STALLSCOPE_SOCKET": "/nonexistent"}
    command = [sys.executable, flag, "-c", code, package / "_hooks" / "importable.py"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{found}\n"


def test_within_python_that_the_native_part_calls():
    code = (
        "import os, signal\n"
        "from stallscope import _native\n"
        "def late(number, frame):\n"
        "    raise TimeoutError('late')\n"
        "signal.signal(signal.SIGUSR2, late)\n"
        "_native.watch_steps(lambda: os.kill(os.getpid(), signal.SIGUSR2))\n"
        "try:\n"
        "    _native.script_stepped()\n"
        "except TimeoutError as error:\n"
        "    print(error)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    ours = code.replace("os.kill(os.getpid(), signal.SIGUSR2)", "1 / 0").replace("except TimeoutError", "except ZeroDivisionError")
    printed = [subprocess.run([sys.executable, "-c", one], env=env, capture_output=True, text=True, check=True).stdout for one in (code, ours)]
    assert printed == ["late\n", ""]
