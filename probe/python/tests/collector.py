"""A small collector in Python: what tests hand to a job in place of the real one."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

PACKAGE = Path(os.environ.get("STALLSCOPE_PYTHON", Path(__file__).resolve().parents[3] / "target" / "python"))
if not (PACKAGE / "stallscope" / "_native.abi3.so").exists():
    sys.exit(f"There is no staged package in {PACKAGE}; run probe/python/stage.sh first.")
sys.path.insert(0, str(PACKAGE))

from stallscope import _native  # noqa: E402


class Event(SimpleNamespace):
    """`kind`, `time_ns`, and the fields that ebpf/abi/src/lane/event.rs gives this kind."""


class Process:
    """One connection of a shim."""

    def __init__(self, connection):
        self.connection = connection
        self.pending = b""
        self.greeting = None
        self.facts = []
        self.lane = None
        self.page = None
        self.events = []
        # Looked at after every few milliseconds of a job: all of its events would be gone through each time.
        self._events_of = defaultdict(list)
        self._knob_of = {}

    def receive(self):
        data, fds, _, _ = socket.recv_fds(self.connection, 65536, 4)
        for fd in fds:
            if self.lane is None:
                self.lane = _native.LaneReader(fd)
            else:
                assert self.page is None, "a third descriptor"
                self.page = _native.KnobTurner(fd)
        if not data:
            self.connection.close()
            self.connection = None
            return
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if self.greeting is None:
                self.greeting = message
            else:
                self.facts.append(message)
                if message["fact"] == "knob":
                    self._knob_of[message["slot"]] = message
                elif message["fact"] == "knobgone":
                    self._knob_of.pop(message["slot"], None)

    def drain(self):
        if self.lane is not None:
            for time_ns, kind, fields in self.lane.drain():
                event = Event(time_ns=time_ns, kind=kind, **fields)
                self.events.append(event)
                self._events_of[kind].append(event)

    def of(self, kind, loader=None):
        return [event for event in self._events_of[kind] if loader is None or event.loader == loader]

    def facts_of(self, kind):
        return [fact for fact in self.facts if fact["fact"] == kind]

    def knobs(self):
        """The knobs there are, by name and loader, as they were last reported."""
        return {(knob["name"], knob["loader"]): knob for knob in self._knob_of.values()}

    def ask(self, name, value, loader=None):
        knob = self.knobs()[name, loader]
        self.page.ask(knob["slot"], knob["generation"], value)

    def standing(self, name, loader=None):
        """The value in force, and how the last request stands."""
        knob = self.knobs()[name, loader]
        return self.page.standing(knob["slot"], knob["generation"])

    @property
    def pid(self):
        return self.greeting["pid"]

    @property
    def kind(self):
        return ([self.greeting] + self.facts_of("kind"))[-1]["kind"]


class Collector:
    """Listens for shims while a job runs."""

    def __init__(self, drain=True):
        self.folder = tempfile.TemporaryDirectory(prefix="stallscope-test-")
        self.path = os.path.join(self.folder.name, "socket")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self.drain = drain
        self.processes = []

    def serve_once(self, timeout=0.02):
        """Whether anything happened."""
        open_ones = {p.connection: p for p in self.processes if p.connection}
        readable, _, _ = select.select([self.listener, *open_ones], [], [], timeout)
        for ready in readable:
            if ready is self.listener:
                self.processes.append(Process(self.listener.accept()[0]))
            else:
                open_ones[ready].receive()
        if self.drain:
            for process in self.processes:
                process.drain()
        return bool(readable)

    def serve(self, job, limit_s=240):
        """Until `job` has ended and everything it sent is here; gives its exit code."""
        deadline = time.monotonic() + limit_s
        while job.poll() is None:
            assert time.monotonic() < deadline, "the job hangs"
            self.serve_once()
        while self.serve_once(timeout=0.1):
            pass
        for process in self.processes:
            process.drain()
        return job.returncode

    def close(self):
        self.listener.close()
        for process in self.processes:
            if process.connection:
                process.connection.close()
        self.folder.cleanup()

    def trainer(self):
        (trainer,) = [process for process in self.processes if process.kind == "trainer"]
        return trainer

    def by_pid(self, pid):
        (process,) = [process for process in self.processes if process.pid == pid]
        return process


def environment(socket_path, **more):
    """What the launcher sets; without a socket, what a job has that is not launched by us."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("STALLSCOPE_", "PYTHON"))}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    if socket_path:
        env["PYTHONPATH"] = str(PACKAGE / "stallscope" / "_inject")
        env["STALLSCOPE_SOCKET"] = str(socket_path)
        env["STALLSCOPE_DEBUG"] = "1"
    env.update(more)
    return env


def popen(command, env, out, err, **how):
    return subprocess.Popen(command, env=env, stdout=out, stderr=err, **how)


def start(command, env):
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Run(NamedTuple):
    code: int
    out: str
    err: str
    collector: Collector


def run(command, drain=True, limit_s=240, **more):
    """Runs `command` under the shim."""
    collector = Collector(drain)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        job = popen([str(part) for part in command], environment(collector.path, **more), out, err)
        try:
            code = collector.serve(job, limit_s)
        finally:
            if job.poll() is None:
                job.kill()
                job.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return Run(code, *texts, collector)


class Warm:
    """A Python that has imported torch."""

    def __init__(self, python):
        command = [python, Path(__file__).with_name("warm.py")]
        self.server = subprocess.Popen(
            command, env=environment(None), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request):
        try:
            self.server.stdin.write(json.dumps(request, default=str) + "\n")
            self.server.stdin.flush()
            return json.loads(self.server.stdout.readline())
        except BaseException:
            # Where a test's time is up in between, the answer would be taken for the next one's.
            warm.cache_clear()
            raise


@lru_cache(None)
def warm(python):
    return Warm(python)


class WarmJob:
    """As subprocess.Popen, of a script that a Python runs which has imported torch."""

    def __init__(self, command, env, out, err, start_new_session=False):
        """`out`, `err`: paths. The script sees a shim that came after torch, other than with `popen`."""
        python, *script = (str(part) for part in command)
        self.server, self.returncode = warm(python), None
        self.pid = self.server.ask(command=script, env=env, out=out, err=err, group=start_new_session)

    def poll(self):
        if self.returncode is None:
            self.returncode = self.server.ask(poll=self.pid)
        return self.returncode

    def wait(self):
        if self.returncode is None:
            self.returncode = self.server.ask(wait=self.pid)
        return self.returncode

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


def start_warm(command, env, out, err, **how):
    """As `popen`, of a script by a Python that has imported torch."""
    return WarmJob(command, env, *(f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)), **how)


def run_warm(command, limit_s=400, **more):
    """Runs a script without the shim, by a Python that has imported torch."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = (os.path.join(folder, name) for name in ("out", "err"))
        job, deadline = WarmJob(command, environment(None, **more), out, err), time.monotonic() + limit_s
        try:
            while job.poll() is None:
                assert time.monotonic() < deadline, "the job hangs"
                time.sleep(0.01)
        finally:
            if job.poll() is None:
                job.kill()
                job.wait()
        return Run(job.returncode, Path(out).read_text(), Path(err).read_text(), None)


def run_plain(command, **more):
    """Runs `command` without the shim."""
    done = subprocess.run([str(p) for p in command], env=environment(None, **more), capture_output=True, text=True)
    return Run(done.returncode, done.stdout, done.stderr, None)
