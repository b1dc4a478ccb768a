"""The shim that comes by itself: what the start of each Python of an environment with the package does, and does not do."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

import pytest
from collector import PACKAGE, environment

from stallscope import _native, _node

START = Path(__file__).resolve().parents[1] / "start"
# As little of torch as the hooks need to have been set at its import.
TORCH = "import torch.optim.optimizer\n__version__ = '2.0'\n"
LOOK = """
import json, os, sys
before = [name for name in sys.modules if name.split(".")[0] == "stallscope"]
import torch
finders = [type(finder).__name__ for finder in sys.meta_path]
print(json.dumps({
    "before": before,
    "watches": finders.count("_Watch"),
    "hooked": finders.count("Finder"),
    "env": {name: os.environ.get(name) for name in ("STALLSCOPE_SOCKET", "STALLSCOPE_NODE_JOB", "STALLSCOPE_CACHE_BYTES")},
    "pid": os.getpid(),
}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python of an environment that has the package as `pip install` leaves it, and a torch that can do nothing."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    for file in START.iterdir():
        if file.is_file():
            (packages / file.name).write_bytes(file.read_bytes())
    (packages / "stallscope").symlink_to(PACKAGE / "stallscope")
    (packages / "torch" / "optim").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text(TORCH)
    (packages / "torch" / "optim" / "__init__.py").touch()
    (packages / "torch" / "optim" / "optimizer.py").write_text("")
    return folder / "bin" / "python"


class Service:
    """Answers as the node's service would, and keeps what it was asked."""

    def __init__(self, folder, answer):
        self.kernel_socket, self.answer, self.asked = folder / "kernel.sock", answer, []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "node.sock"))
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.asked.append(json.loads(connection.makefile().readline()))
            if self.answer is None:
                # Never; it is held open.
                self.held = connection
                continue
            with connection, contextlib.suppress(OSError):
                connection.sendall(self.answer)

    def close(self):
        # Who waits in accept would be served once more.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def service(tmp_path):
    made = []

    def make(answer=b'{"shim":{"comes":true,"first_cache_bytes":0}}\n'):
        made.append(Service(tmp_path, answer))
        return made[0]

    yield make
    for one in made:
        one.close()


def env_with(tmp_path, **more):
    return environment(None, STALLSCOPE_KERNEL_SOCKET=str(tmp_path / "kernel.sock"), STALLSCOPE_RUNTIME_DIR=str(tmp_path / "run"), **more)


def looked(python, env, *options, **more):
    done = subprocess.run([python, *options, "-c", LOOK], env=env, capture_output=True, text=True, **more)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


def test_without_a_service_nothing_of_the_package_is_there(python, tmp_path):
    seen = looked(python, env_with(tmp_path))
    assert (seen["before"], seen["watches"], seen["hooked"]) == ([], 0, 0)


def test_the_shim_comes_with_torch_where_the_policy_says_so(python, tmp_path, service):
    node = service(b'{"shim":{"comes":true,"first_cache_bytes":4194304}}\n')
    seen = looked(python, env_with(tmp_path, STALLSCOPE_LABEL="nightly"))
    assert (seen["before"], seen["watches"], seen["hooked"]) == ([], 1, 1)
    (asked,) = node.asked
    assert asked["stallscope"] == _native.PROTOCOL_VERSION
    assert (asked["role"], asked["pid"], asked["label"], asked["trains"]) == ("shim", seen["pid"], "nightly", False)
    key = f"node-{asked['pid']}-{asked['start_ticks']}"
    assert seen["env"] == {
        "STALLSCOPE_SOCKET": str(tmp_path / "run" / "jobs" / key / "sock"),
        "STALLSCOPE_NODE_JOB": f"{asked['pid']} {asked['start_ticks']}",
        "STALLSCOPE_CACHE_BYTES": "4194304",
    }


def test_what_imports_torch_itself_is_hooked_all_the_same(python, tmp_path, service):
    node = service()
    package = tmp_path / "safetensors"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "torch.py").write_text("import torch\ndef save_file(tensors, filename): return 7\n")
    code = "import safetensors.torch as it; print(hasattr(it.save_file, '__wrapped__'), it.save_file({}, 'f'))"
    for more, printed in ({}, "True 7\n"), ({"STALLSCOPE_SHIM": "off"}, "False 7\n"):
        env = env_with(tmp_path, PYTHONPATH=str(tmp_path), **more)
        done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout == printed, done.stderr
    assert len(node.asked) == 1


def test_children_belong_to_the_job_and_ask_nobody(python, tmp_path, service):
    node = service()
    code = f"import subprocess, sys, torch\nsubprocess.run([sys.executable, '-c', {LOOK!r}], check=True)"
    done = subprocess.run([python, "-c", code], env=env_with(tmp_path), capture_output=True, text=True, check=True)
    child = json.loads(done.stdout)
    (asked,) = node.asked
    assert asked["pid"] != child["pid"] and child["hooked"] == 1
    assert child["env"]["STALLSCOPE_NODE_JOB"] == f"{asked['pid']} {asked['start_ticks']}"


def test_python_without_torch_asks_nobody(python, tmp_path, service):
    node = service()
    code = "import sys, json, logging, asyncio\nprint([name for name in sys.modules if name.startswith('stallscope')])"
    done = subprocess.run([python, "-c", code], env=env_with(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n" and node.asked == []


@pytest.mark.parametrize("more", [{"STALLSCOPE_SHIM": "off"}, {"STALLSCOPE_SHIM": "0"}, {"STALLSCOPE_SOCKET": "/nowhere"}], ids=str)
def test_it_stays_out_where_it_is_off_and_where_run_brings_it(python, tmp_path, service, more):
    node = service()
    seen = looked(python, env_with(tmp_path, **more))
    assert (node.asked, seen["watches"], seen["hooked"]) == ([], 0, 0)


def test_it_stays_out_of_a_python_that_ignores_its_environment(python, tmp_path, service):
    node = service()
    code = "import sys; print([type(finder).__name__ for finder in sys.meta_path])"
    for options, comes in ((), True), (("-E",), False), (("-I",), False):
        done = subprocess.run([python, *options, "-c", code], env=env_with(tmp_path), capture_output=True, text=True, check=True)
        assert ("_Watch" in done.stdout) == comes, options
    assert node.asked == []


def test_it_comes_once_where_two_folders_have_the_package(python, tmp_path, service):
    node = service()
    second = tmp_path / "second"
    second.mkdir()
    (second / "stallscope.pth").write_bytes((START / "stallscope.pth").read_bytes())
    code = f"import site; site.addsitedir({str(second)!r})\n{LOOK}"
    done = subprocess.run([python, "-c", code], env=env_with(tmp_path), capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert (len(node.asked), seen["watches"], seen["hooked"]) == (1, 1, 1)


ANSWERS = [
    b"",
    b"\n",
    b"no answer\n",
    b"[]\n",
    b'{"shim":3}\n',
    b'{"shim":{"comes":"true"}}\n',
    b'{"shim":{"comes":false,"first_cache_bytes":0}}\n',
    b'{"error":"this shim is of another version"}\n',
    b"\xff" * 100_000,
    None,
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: repr(answer)[:30])
def test_a_service_that_answers_wrongly_or_never_changes_nothing(python, tmp_path, service, answer):
    node = service(answer)
    seen = looked(python, env_with(tmp_path))
    assert len(node.asked) == 1 and seen["hooked"] == 0
    assert seen["env"] == dict.fromkeys(seen["env"])


def test_a_socket_that_nobody_serves_changes_nothing(python, tmp_path, service):
    service().close()
    assert looked(python, env_with(tmp_path))["hooked"] == 0


def test_a_queue_that_others_fill_is_tried_again(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as own:
        listener.bind(str(tmp_path / "node.sock"))
        listener.listen(0)
        other.connect(listener.getsockname())
        own.settimeout(60)
        with pytest.raises(BlockingIOError):
            own.connect(listener.getsockname())
        accepts = threading.Timer(0.05, listener.accept)
        accepts.start()
        _node._connect(own, listener.getsockname(), time.monotonic() + 60)
        accepts.join()


def test_a_broken_package_ends_no_job(python, tmp_path, service):
    service()
    (tmp_path / "stallscope").mkdir()
    (tmp_path / "stallscope" / "__init__.py").write_text("raise RuntimeError('broken')")
    seen = looked(python, env_with(tmp_path, PYTHONPATH=str(tmp_path)))
    assert seen["hooked"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: it takes root to start a process with two users")
def test_it_stays_out_of_set_uid_programs(python, tmp_path, service):
    node = service()
    seen = looked(python, env_with(tmp_path), preexec_fn=lambda: os.setresuid(65534, 0, 0))
    assert (node.asked, seen["watches"], seen["hooked"]) == ([], 0, 0)


def test_a_program_that_gained_rights_is_known_by_the_kernels_word(monkeypatch, tmp_path):
    from stallscope import _node

    assert not _node._is_privileged()
    words = [6, 4096, 23, 1, 0, 0]
    secure = tmp_path / "auxv"
    secure.write_bytes(b"".join(word.to_bytes(8, sys.byteorder) for word in words))
    monkeypatch.setattr("builtins.open", lambda *_: secure.open("rb"), raising=False)
    assert _node._is_privileged()
