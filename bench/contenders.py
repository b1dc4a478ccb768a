"""What may watch the loader job: nothing, stallscope in its modes, and other people's tools.

Each contender starts a job that it watches from then on, until the job is closed: nothing of it is alive while
the bare job runs, since some tools slow down the whole machine.
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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
STALLSCOPE = ROOT / "target" / "release" / "stallscope"
WORK = ROOT / "target" / "bench"
JOB = [sys.executable, str(ROOT / "bench" / "loader_job.py"), str(WORK / "images")]
# So many workers leave no core free, and so many leave one (or, of two, most of one: the trainer waits for its worker).
CPUS = len(os.sched_getaffinity(0))
NO_CORE, A_CORE = ["--workers", str(max(2, CPUS))], ["--workers", str(max(1, CPUS - 2))]

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


# `run` calls a kernel service that went away again each second.
CALLED_AGAIN_SECONDS = 1.5

# No epoch and no start takes this long, even under strace.
ANSWER_SECONDS = 120


class Job:
    """A running loader job whose epochs are started one by one; a context manager. Raises BenchFailed."""

    def __init__(self, command: list[str], environment: dict | None = None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )
        self.ready = self.answer()
        self.pid = self.ready["pid"]

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_):
        self.close()

    def answer(self) -> dict:
        readable, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline() if readable else ""
        if not line.startswith("{"):
            self.process.kill()
            self.log.seek(0)
            raise BenchFailed(f"`{self.process.args[0]} …` printed '{line.strip()}' and {self.log.read()[-1500:]}")
        return json.loads(line)

    def epoch(self, how: str = "") -> dict:
        try:
            self.process.stdin.write(f"{how}\n")
            self.process.stdin.flush()
        except BrokenPipeError as gone:
            raise BenchFailed(f"`{self.process.args[0]} …` ended before its epochs had") from gone
        return self.answer()

    def close(self):
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self.log.close()


class Switched(Job):
    """One job under `stallscope run` in which all of it, kernel programs, hooks and collector, is switched on and off.

    Two jobs that do the same differ by several percent, as their memory lies otherwise; one doesn't from itself.
    Kernel evidence comes from a `stallscope collect` that is started and ended: `run` calls a new one by itself.
    """

    # Of `stallscope run`.
    OPTIONS: tuple[str, ...] = ()

    def __init__(self, *job_options: str):
        socket = WORK / "kernel.sock"
        self.service_command = [str(STALLSCOPE), "collect", "--socket", str(socket)]
        self.service = self.serve()
        super().__init__([*stallscope_run(*self.OPTIONS), *job_options], {**os.environ, "STALLSCOPE_KERNEL_SOCKET": str(socket)})
        if not self.ready["hooks"]:
            raise BenchFailed("no function of torch's was hooked: nothing could be switched off")

    def serve(self) -> subprocess.Popen:
        return watcher(self.service_command, "kernel.sock")

    def switch(self, on: bool):
        # Bare or not, what comes next follows the same: a service that was started a moment ago, and a job that waited for it. A job that
        # has waited is slower for a while, and what loading the kernel programs leaves of the caches is paid by who trains next.
        if self.service:
            self.unserve()
        self.service = self.serve()
        self.process.send_signal(signal.SIGCONT)
        time.sleep(CALLED_AGAIN_SECONDS)
        if not on:
            self.unserve()
            self.process.send_signal(signal.SIGSTOP)

    def collectors_cpu_s(self) -> float:
        """CPU time so far of what measures beside the job: the collector, and who gives it the kernel's evidence."""
        return sum(cpu_s(process.pid) for process in (self.process, self.service) if process)

    def programs_ns(self) -> int:
        """How long the kernel programs have run so far, on all CPUs, while the kernel counted that."""
        counts = [info.read_text() for info in Path(f"/proc/{self.service.pid}/fdinfo").iterdir()]
        return sum(int(text.split("run_time_ns:")[1].split()[0]) for text in counts if "run_time_ns:" in text)

    def unserve(self):
        end(self.service)
        self.service = None

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        super().close()
        if self.service:
            self.unserve()


class Watched(Job):
    """A job that a tool attaches to once it has started."""

    def __init__(self, tool, ready: str):
        super().__init__(JOB)
        try:
            self.watcher = watcher(tool(self.pid), ready)
        except BenchFailed:
            super().close()
            raise

    def close(self):
        end(self.watcher)
        super().close()


def cpu_s(pid: int) -> float:
    # User and system time, in ticks, behind the name, which may have spaces and brackets.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watcher(command: list[str], ready: str) -> subprocess.Popen:
    """Starts a tool and waits until it has printed `ready`. Raises BenchFailed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(process, ready)
    return process


def end(process: subprocess.Popen):
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def wait_for(watcher: subprocess.Popen, ready: str, seconds: float = 30):
    """Until the tool has printed `ready`. Raises BenchFailed."""
    output, deadline = b"", time.monotonic() + seconds
    while ready.encode() not in output:
        readable, _, _ = select.select([watcher.stdout], [], [], max(0, deadline - time.monotonic()))
        part = os.read(watcher.stdout.fileno(), 4096) if readable else b""
        if not part:
            watcher.kill()
            raise BenchFailed(f"`{watcher.args[0]}` did not say '{ready}' but: {output.decode(errors='replace')[-800:]}")
        output += part


@dataclass(frozen=True)
class Contender:
    name: str
    # Makes a Job.
    start: object
    # A program that has to be there.
    needs: str | None = None
    # Bar for the ratio to the bare job, as an excess: 0.01 is 1%.
    bar: float | None = None
    # Its job switches it on and off by itself, with new workers in each part, or in both parts of so many pairs.
    switched: bool = False
    new_each_time: bool = False
    pairs_of_workers: int = 6
    # Pairs of jobs at most, epochs of each, and the time after which no further pair is begun.
    pairs: int = 5
    epochs: int = 2
    seconds: float = 70

    def missing(self) -> str | None:
        if self.needs and not shutil.which(self.needs):
            return f"{self.name} is not there; install {Path(self.needs).name} (scripts/setup.sh bench does as root)"
        return None


def bare() -> Job:
    return Job(JOB)


def recording(name: str) -> str:
    for old in WORK.glob(f"{name}.stall*"):
        old.unlink()
    return str(WORK / f"{name}.stall")


def stallscope_run(*options: str) -> list[str]:
    return [str(STALLSCOPE), "run", "--quiet", "-o", recording("overhead"), *options, "--", *JOB]


def attach_command(pid: int, *options: str) -> list[str]:
    return [str(STALLSCOPE), "attach", str(pid), "-o", recording("attach"), *options]


def stallscope(*options: str):
    return lambda: Job(stallscope_run(*options))


def attached(*options: str):
    return lambda: Watched(lambda pid: attach_command(pid, *options), "\n")


def py_spy(pid: int) -> list[str]:
    return [PY_SPY, "record", "--subprocesses", "--pid", str(pid), "-d", "600", "-o", str(WORK / "py-spy.svg")]


def bpftrace(pid: int) -> list[str]:
    return ["bpftrace", "-e", BPFTRACE % pid]


PY_SPY = str(Path(sys.executable).with_name("py-spy"))
HEADLINE = {"pairs": 1000, "epochs": 16, "seconds": 1200, "switched": True}
# A part with new workers is too short for anything else to count as much.
NEW_WORKERS = {"pairs": 1000, "epochs": 3, "seconds": 600, "switched": True, "new_each_time": True}
OURS = [
    Contender("kernel + shim", lambda: Switched(*NO_CORE), bar=0.01, **HEADLINE),
    Contender("kernel + shim, a core to spare", lambda: Switched(*A_CORE), bar=0.01, **HEADLINE),
    Contender("kernel + shim, new workers each time", lambda: Switched(*NO_CORE), **NEW_WORKERS),
    Contender("kernel + shim, by jobs", stallscope()),
    Contender("shim", stallscope("--no-kernel")),
    Contender("kernel", stallscope("--no-shim")),
    Contender("attach, syscall hooks", attached()),
]
FEW = {"pairs": 3, "seconds": 45}
PEERS = [
    Contender("torch.profiler", lambda: Job([*JOB, "--profile"]), **FEW),
    Contender("py-spy record", lambda: Watched(py_spy, "Sampling"), needs=PY_SPY, **FEW),
    Contender(
        "strace -c -f", lambda: Job(["strace", "-c", "-f", "-o", str(WORK / "strace.txt"), *JOB]), needs="strace", **FEW
    ),
    Contender("bpftrace", lambda: Watched(bpftrace, "ready"), needs="bpftrace", **FEW),
]
