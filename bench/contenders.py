"""What may watch the loader job: nothing, stallscope in its modes, and other people's tools.

Each contender is a context manager that yields a `Job`; the tools that would slow others down as well as their own
job are switched on for their own epochs alone.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
STALLSCOPE = ROOT / "target" / "release" / "stallscope"
WORK = ROOT / "target" / "bench"
JOB = [sys.executable, str(ROOT / "bench" / "loader_job.py"), str(WORK / "images")]

# The same question to bpftrace: how long do reads take, and how long is a task off the CPU.
BPFTRACE = """
BEGIN { printf("ready\\n"); }
tracepoint:syscalls:sys_enter_read /comm == "pt_data_worker" || pid == %d/ { @start[tid] = nsecs; }
tracepoint:syscalls:sys_exit_read /@start[tid]/ { @read_ns[pid] = hist(nsecs - @start[tid]); delete(@start[tid]); }
tracepoint:sched:sched_switch { @off[args->prev_pid] = nsecs; }
tracepoint:sched:sched_switch /@off[args->next_pid]/ { @off_cpu_ns[args->next_comm] = sum(nsecs - @off[args->next_pid]); }
"""


class BenchFailed(Exception):
    """One sentence on what could not be measured."""


class Job:
    """A running loader job whose epochs are started one by one."""

    def __init__(self, command: list[str], environment: dict | None = None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )
        self.pid = self.answer()["pid"]

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line.startswith("{"):
            self.process.kill()
            self.log.seek(0)
            raise BenchFailed(f"`{self.process.args[0]} …` said '{line.strip()}' and {self.log.read()[-1500:]}")
        return json.loads(line)

    def epoch(self) -> dict:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.wait(60)
        self.log.close()


class Watched(Job):
    """A bare job with a tool that is attached to it for each epoch."""

    def __init__(self, tool, ready: str):
        super().__init__(JOB)
        self.tool, self.ready = tool, ready

    def epoch(self) -> dict:
        command = self.tool(self.pid)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as watcher:
            wait_for(watcher, self.ready)
            try:
                return super().epoch()
            finally:
                watcher.send_signal(signal.SIGINT)
                watcher.communicate(timeout=60)


def wait_for(watcher: subprocess.Popen, ready: str, seconds: float = 30):
    """Until the tool has printed `ready`. Raises BenchFailed."""
    said, deadline = b"", time.monotonic() + seconds
    while ready.encode() not in said:
        readable, _, _ = select.select([watcher.stdout], [], [], max(0, deadline - time.monotonic()))
        part = os.read(watcher.stdout.fileno(), 4096) if readable else b""
        if not part:
            watcher.kill()
            raise BenchFailed(f"`{watcher.args[0]}` did not say '{ready}' but: {said.decode(errors='replace')[-800:]}")
        said += part


@dataclass(frozen=True)
class Contender:
    name: str
    start: object
    # A program that has to be there.
    needs: str | None = None
    # Bar for the ratio to the bare job, as an excess: 0.01 is 1%.
    bar: float | None = None

    @contextmanager
    def job(self):
        job = self.start()
        try:
            yield job
        finally:
            job.close()

    def missing(self) -> str | None:
        if self.needs and not shutil.which(self.needs):
            return f"{self.name} is not there; install {Path(self.needs).name} (scripts/setup.sh bench does as root)"
        return None


def bare() -> Job:
    return Job(JOB)


def stallscope(*options: str):
    def start() -> Job:
        recording = WORK / "overhead.stall"
        for old in WORK.glob("overhead.stall*"):
            old.unlink()
        return Job([str(STALLSCOPE), "run", "--quiet", "-o", str(recording), *options, "--", *JOB])

    return start


def attached(*options: str):
    def tool(pid: int) -> list[str]:
        recording = WORK / "attach.stall"
        for old in WORK.glob("attach.stall*"):
            old.unlink()
        return [str(STALLSCOPE), "attach", str(pid), "-o", str(recording), *options]

    return lambda: Watched(tool, "\n")


def py_spy(pid: int) -> list[str]:
    return [PY_SPY, "record", "--subprocesses", "--pid", str(pid), "-d", "600", "-o", str(WORK / "py-spy.svg")]


def bpftrace(pid: int) -> list[str]:
    return ["bpftrace", "-e", BPFTRACE % pid]


PY_SPY = str(Path(sys.executable).with_name("py-spy"))
OURS = [
    Contender("kernel + shim", stallscope(), bar=0.01),
    Contender("shim", stallscope("--no-kernel")),
    Contender("kernel", stallscope("--no-shim")),
    Contender("attach, syscall hooks", attached()),
]
PEERS = [
    Contender("torch.profiler", lambda: Job([*JOB, "--profile"])),
    Contender("py-spy record", lambda: Watched(py_spy, "Sampling"), needs=PY_SPY),
    Contender(
        "strace -c -f", lambda: Job(["strace", "-c", "-f", "-o", str(WORK / "strace.txt"), *JOB]), needs="strace"
    ),
    Contender("bpftrace", lambda: Watched(bpftrace, "ready"), needs="bpftrace"),
]
