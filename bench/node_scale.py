"""`make bench-node-scale`: the node's service beside 1,000 jobs, at rest and while one ends and one begins each second. Needs root.

A job is a process that sleeps, and a connection that introduces it and reports every 5 s what a job's collector reports. The
policy observes all of them, so that no session is started: what is measured are the service and the launcher. At rest: CPU,
memory and whether all jobs are known. Under churn: whether descriptors, memory and tasks grow; two hours, or SECONDS=….
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from table import ROOT, Row, markdown, summary, write

STALLSCOPE = ROOT / "target" / "release" / "stallscope"
WORK = ROOT / "target" / "bench" / "node-scale"
TICKS = os.sysconf("SC_CLK_TCK")
# As whom users are heard.
SERVICE_UID = 65533
# Of the first of the jobs' users, and how many there are.
FIRST_UID, USERS = 20_000, 40
REPORT_EVERY_S = 5
SAMPLE_EVERY_S = 10
# Jobs that introduce themselves and the service's own start are no rest.
SETTLE_S = 15
MAX_CORE_PERCENT, MAX_MB = 1, 100
# What an allocator may still need while nothing grows.
MAX_GROWTH_MB = 2
POLICY = "[[jobs.rule]]\nmode = \"observe\"\nwithout_run = true\n"
REPORT = {
    "saved_s": 12.5,
    "faster": 0.31,
    "cache": {"granted_bytes": 0, "held_bytes": 1 << 26, "benefit": [[1 << power, 0.05 * (power - 22)] for power in range(23, 33)]},
}


class BenchFailed(Exception):
    pass


def version() -> int:
    """Of the collector's protocol."""
    text = (ROOT / "collector" / "wire" / "src" / "message.rs").read_text()
    return int(re.search(r"pub const VERSION: u32 = (\d+);", text)[1])


VERSION = version()


def line(document: dict) -> bytes:
    return json.dumps(document).encode() + b"\n"


class Job:
    def __init__(self, number: int):
        self.process = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL)
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(10)
        try:
            self.connection.connect(str(WORK / "node.sock"))
            hello = {"stallscope": VERSION, "role": "job", "name": f"job-{number}", "owner": FIRST_UID + number % USERS}
            self.connection.sendall(line(hello))
            answer = self.connection.recv(4096)
            if b"allowed" not in answer:
                raise OSError(f"it was answered {answer!r}")
            self.connection.sendall(line({"started": {"pid": self.process.pid}}))
        except OSError as error:
            self.end()
            raise BenchFailed(f"job {number} could not introduce itself: {error}") from error

    def report(self):
        self.connection.sendall(line({"report": REPORT}))

    def end(self):
        self.process.kill()
        self.process.wait()
        self.connection.close()


class Jobs:
    def __init__(self):
        self.running, self.due = deque(), deque()
        self.begun = 0

    def begin_all(self, count: int):
        for _ in range(count):
            self.begin()
        self.due = deque((time.monotonic() + REPORT_EVERY_S * at / count, job) for at, job in enumerate(self.running))

    def begin(self):
        self.running.append(Job(self.begun))
        self.begun += 1

    def change_one(self):
        """The oldest ends, and another begins."""
        self.running.popleft().end()
        self.begin()
        self.due.append((time.monotonic() + REPORT_EVERY_S, self.running[-1]))

    def report_until(self, until: float):
        """Each reports when its time has come."""
        while (now := time.monotonic()) < until:
            while self.due and self.due[0][0] <= now:
                at, job = self.due.popleft()
                if job.process.returncode is None:
                    job.report()
                    self.due.append((at + REPORT_EVERY_S, job))
            time.sleep(0.02)

    def end(self):
        for job in self.running:
            job.end()


@dataclass
class Sample:
    descriptors: int
    tasks: int
    memory_mb: float
    # Jobs that live and that the service does not know.
    unknown: int


class Service:
    """The part that hears users, and the launcher that started it."""

    def __init__(self, launcher: int):
        self.launcher = launcher
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        self.pids = [launcher, int(children[0])]

    def cpu_seconds(self) -> float:
        def of(pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / TICKS

        return sum(map(of, self.pids))

    def memory_mb(self) -> float:
        return self._status("VmRSS") * 1024 / 1e6

    def _status(self, name: str) -> int:
        """Sum of both parts."""
        texts = (Path(f"/proc/{pid}/status").read_text() for pid in self.pids)
        return sum(int(re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[1]) for text in texts)

    def sample(self, jobs: Jobs) -> Sample:
        living = {job.process.pid for job in jobs.running}
        unknown = living
        # A job that has just introduced itself is still being looked at.
        for _ in range(20):
            unknown = living - {job["pid"] for job in json.loads(stallscope("node", "--json"))["jobs"]}
            if not unknown:
                break
            time.sleep(0.1)
        return Sample(
            descriptors=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids),
            tasks=self._status("Threads"),
            memory_mb=self.memory_mb(),
            unknown=len(unknown),
        )


def stallscope(*words: str) -> str:
    done = subprocess.run([STALLSCOPE, *words], env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise BenchFailed(f"`stallscope {' '.join(words)}`: {done.stderr.strip()}")
    return done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "STALLSCOPE_KERNEL_SOCKET": str(WORK / "kernel.sock")}


@contextmanager
def service():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    (WORK / "policy.toml").write_text(POLICY)
    words = ["node-service", "--config", "policy.toml", "--user", str(SERVICE_UID), "--socket", WORK / "node.sock", "--state", WORK / "state"]
    with (WORK / "service.printed").open("w") as printed:
        launcher = subprocess.Popen([str(word) for word in [STALLSCOPE, *words]], cwd=WORK, env=environment(),
                                    stdin=subprocess.DEVNULL, stdout=printed, stderr=printed)
    try:
        until = time.monotonic() + 10
        while not (WORK / "node.sock").exists() or "serving" not in (WORK / "service.printed").read_text():
            if launcher.poll() is not None or time.monotonic() > until:
                raise BenchFailed(f"the service did not begin; {WORK / 'service.printed'} says why")
            time.sleep(0.05)
        yield Service(launcher.pid)
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait()


def at_rest(rows: list[Row], node: Service, jobs: Jobs, seconds: float) -> list[str]:
    begun, cpu = time.monotonic(), node.cpu_seconds()
    jobs.report_until(begun + seconds)
    core_percent = 100 * (node.cpu_seconds() - cpu) / (time.monotonic() - begun)
    now = node.sample(jobs)
    case = f"{len(jobs.running)} jobs at rest"
    rows += [
        Row(case, "service and launcher", core_percent, "% of a core", f"<= {MAX_CORE_PERCENT}%", core_percent <= MAX_CORE_PERCENT),
        Row(case, "memory", now.memory_mb, "MB", f"<= {MAX_MB} MB", now.memory_mb <= MAX_MB),
        Row(case, "lost", now.unknown, "jobs", "0", now.unknown == 0),
    ]
    return [case, f"{seconds:.0f}", f"{core_percent:.2f}%", *shown(now, now), str(now.unknown)]


def churn(rows: list[Row], node: Service, jobs: Jobs, seconds: float) -> list[str]:
    begun, cpu = time.monotonic(), node.cpu_seconds()
    samples, next_sample = [], begun + SAMPLE_EVERY_S
    while (now := time.monotonic()) < begun + seconds:
        jobs.change_one()
        jobs.report_until(now + 1)
        if now >= next_sample:
            samples.append(node.sample(jobs))
            next_sample += SAMPLE_EVERY_S
    core_percent = 100 * (node.cpu_seconds() - cpu) / (time.monotonic() - begun)
    if len(samples) < 10:
        raise BenchFailed(f"to see whether something grows takes {11 * SAMPLE_EVERY_S} s or more")
    # What the first of this kind needed once is in the second fifth, too.
    fifth = len(samples) // 5
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]

    def most(part, name):
        return max(getattr(sample, name) for sample in part)

    first, last = (Sample(*(most(part, name) for name in Sample.__dataclass_fields__)) for part in (early, late))
    unknown = most(samples, "unknown")
    case = f"{len(jobs.running)} jobs, one ends and one begins each second"
    rows += [
        Row(case, "service and launcher", core_percent, "% of a core"),
        Row(case, "further descriptors", last.descriptors - first.descriptors, "", "at most 0", last.descriptors <= first.descriptors),
        Row(case, "further tasks", last.tasks - first.tasks, "", "at most 0", last.tasks <= first.tasks),
        Row(case, "further memory", last.memory_mb - first.memory_mb, "MB", f"<= {MAX_GROWTH_MB} MB",
            last.memory_mb - first.memory_mb <= MAX_GROWTH_MB),
        Row(case, "lost", unknown, "jobs", "0", unknown == 0),
    ]
    return [case, f"{seconds:.0f}", f"{core_percent:.2f}%", *shown(first, last), str(unknown)]


def shown(first: Sample, last: Sample) -> list[str]:
    def both(form, one, other):
        return form.format(one) if first is last else f"{form.format(one)} → {form.format(other)}"

    return [
        both("{:.1f}", first.memory_mb, last.memory_mb),
        both("{}", first.descriptors, last.descriptors),
        both("{}", first.tasks, last.tasks),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rest-seconds", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=7200, help="of churn")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-node-scale: a service and jobs of other users need root; run this as root")
    if not STALLSCOPE.exists():
        sys.exit(f"bench-node-scale: {STALLSCOPE} is not built; run `make build` first")
    rows: list[Row] = []
    with service() as node:
        jobs = Jobs()
        try:
            jobs.begin_all(args.jobs)
            jobs.report_until(time.monotonic() + SETTLE_S)
            lines = [at_rest(rows, node, jobs, args.rest_seconds), churn(rows, node, jobs, args.seconds)]
        finally:
            jobs.end()
    header = ["case", "seconds", "of a core", "MB", "descriptors", "tasks", "jobs lost"]
    print(markdown(header, lines))
    print(summary(rows))
    print(f"Written to {write('node-scale', rows)}")
    if any(row.holds is False for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except BenchFailed as error:
        sys.exit(f"bench-node-scale: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
