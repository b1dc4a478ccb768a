"""Runs one truth job, with or without the profiler beside it, on storage as slow as its case says."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sources
from account import Account
from cases import Case
from compare import Comparison, compare, compare_main_thread
from log import FOLDER, STOP
from storage import SlowStorage, forget

ROOT = Path(__file__).parents[1]
WORK = ROOT / "target" / "truth"
STALLSCOPE = ROOT / "target" / "release" / "stallscope"
# Files and big file together fit the image.
DATA_BYTES = 192 << 20


class JobFailed(Exception):
    """One sentence and the end of the job's output."""


@dataclass
class Outcome:
    comparisons: list[Comparison]
    # `stallscope report --format json`
    report: dict


class Bench:
    """The storage and the request server that truth jobs share; a context manager. Raises StorageError."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.stack = ExitStack()

    def __enter__(self) -> "Bench":
        WORK.mkdir(parents=True, exist_ok=True)
        # One at a time: storage, logs and recording have fixed places, and a neighbour would be in the figures.
        lock = self.stack.enter_context(open(WORK / "lock", "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        storage = SlowStorage(WORK / "storage.img", WORK / "storage", size_mb=768)
        self.storage = self.stack.enter_context(storage)
        self.port = self.stack.enter_context(request_server())
        return self

    def __exit__(self, *error):
        self.stack.__exit__(*error)

    def command(self, case: Case, seconds: float) -> list[str]:
        """Makes the case's data and sets its limits; the command of its job."""
        flags = case.flags.split()
        size = int(flags[flags.index("--sample-bytes") + 1]) if "--sample-bytes" in flags else 65536
        folder, samples = WORK / "storage" / str(size), min(4096, DATA_BYTES // 2 // size)
        self.storage.limit()
        sources.make(folder, size, samples)
        forget(folder)
        self.storage.limit(int(case.read_mb_s * (1 << 20)), case.read_iops)
        program = [sys.executable]
        if case.ranks > 1:
            program += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
        data = ["--folder", str(folder), "--samples", str(samples), "--port", str(self.port)]
        return [*program, str(ROOT / "truth" / case.program), *data, "--seconds", str(seconds), *flags]

    def bare(self, case: Case) -> Account:
        """The job without the profiler: what it does to itself."""
        logs = fresh(WORK / "logs")
        done = quiet(self.command(case, self.seconds), self.seconds, env=environment(logs, case))
        must(done.returncode == 0, f"{case.name} failed", done.stderr)
        return Account.of_folder(logs)

    def run(self, case: Case, *options: str) -> Outcome:
        """Kernel and shim: `stallscope run`. Raises JobFailed, NotComparable."""
        logs, recording = fresh(WORK / "logs"), new_recording()
        command = [STALLSCOPE, "run", "--name", case.name, "-o", recording, *options, "--"]
        job = self.command(case, self.seconds)
        with neighbours(case):
            done = quiet([*command, *job], self.seconds, env=environment(logs, case))
        must(done.returncode == 0, f"`stallscope run` of {case.name} failed", done.stdout + done.stderr)
        comparisons = [] if case.withheld else compare(recording, Account.of_folder(logs))
        return Outcome(comparisons, report(recording))

    def attach(self, case: Case, *options: str) -> Outcome:
        """Kernel alone: `stallscope attach` once the job trains. Raises JobFailed, NotComparable."""
        logs, recording = fresh(WORK / "logs"), new_recording()
        # The job has to outlast the attachment, however long that takes to begin.
        command = self.command(case, self.seconds + 180)
        output = open(WORK / "job.txt", "w+")
        with (
            output,
            neighbours(case),
            subprocess.Popen(command, env=environment(logs, case), stdout=output, stderr=output) as job,
        ):
            try:
                while not trains(logs, case.ranks):
                    must(job.poll() is None, f"{case.name} ended before it trained", (WORK / "job.txt").read_text())
                    time.sleep(0.1)
                attach = [STALLSCOPE, "attach", str(job.pid), "--for", f"{self.seconds}s", "-o", recording]
                done = quiet([*attach, *options], self.seconds)
                must(done.returncode == 0, f"`stallscope attach` to {case.name} failed", done.stdout + done.stderr)
                # It ends by itself, so that its workers let go of the storage.
                (logs / STOP).touch()
                job.wait(120)
            except subprocess.TimeoutExpired as late:
                raise JobFailed(f"{case.name} did not end after `stallscope attach` had gone") from late
            finally:
                job.kill()
        account = Account.of_folder(logs)
        found = [compare_main_thread(recording, account)] if case.is_loop else compare(recording, account)
        return Outcome(found, report(recording))


def quiet(command: list, seconds: float, env: dict | None = None) -> subprocess.CompletedProcess:
    """Runs what should take about `seconds`. Raises JobFailed when it takes minutes more."""
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=seconds + 180)
    except subprocess.TimeoutExpired as late:
        raise JobFailed(f"`{late.cmd[0]} …` did not end within {late.timeout:.0f} s") from late


def report(recording: Path) -> dict:
    done = quiet([STALLSCOPE, "report", recording, "--format", "json"], 0)
    must(done.returncode == 0, f"`stallscope report` of {recording} failed", done.stderr)
    return json.loads(done.stdout)


@contextmanager
def request_server():
    """A storage service outside the job's process tree; its port."""
    command = [sys.executable, str(ROOT / "truth" / "server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()


@contextmanager
def neighbours(case: Case):
    """Processes of somebody else that keep CPUs busy."""
    flags = case.flags.split()
    with ExitStack() as stack:
        for _ in range(case.neighbours):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
            if "--worker-cpu" in flags:
                os.sched_setaffinity(busy.pid, {int(flags[flags.index("--worker-cpu") + 1])})
        yield


def trains(logs: Path, ranks: int) -> bool:
    """Whether every rank has been handed some batches."""
    account = Account.of_folder(logs)
    pids = account.ranks().values()
    return len(pids) == ranks and all(len(account.steps(pid)) + len(account.loop_steps(pid)) > 4 for pid in pids)


def environment(logs: Path, case: Case) -> dict:
    device = {"STALLSCOPE_DEVICE": "device:fake"} if case.hidden_bar and not case.gpu else {}
    return {**os.environ, FOLDER: str(logs), "OMP_NUM_THREADS": "1", **device}


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def new_recording() -> Path:
    path = WORK / "recording.stall"
    for old in WORK.glob(f"{path.name}*"):
        old.unlink()
    return path


def must(holds: bool, what: str, output: str):
    if not holds:
        raise JobFailed(f"{what}: {output.strip()[-2000:]}")
