"""`make bench-node`: four jobs that nobody starts with `run`, on a node whose service may tune them and on one without. Needs root.

All four begin together, as the user nobody and in an environment with the Python package, and do a fixed number of steps:
two read their files from storage on which each read takes a time, one decodes, one waits for its device. Rounds alternate
between nodes with and without a service. What is compared is how long each job took from its start to its end, all of the
service's trials included, and their sum; and what the service itself takes meanwhile. The storage is demo/slowfs, which needs
/dev/fuse; some 20 minutes, with `--copies 2` (eight jobs) twice that.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from control_real import FAST_MIB_S, PYTHON, SLOWFS, STALLSCOPE, BenchFailed
from node_scale import MAX_CORE_PERCENT, MAX_MB, Service
from table import ROOT, Row, markdown, summary, write

WORK = ROOT / "target" / "bench" / "node"
HOME = WORK / "home"
NOBODY = 65534
AS_NOBODY = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
POLICY = """\
[[jobs.rule]]
match = { user = "nobody" }
mode = "act"
without_run = true
cache = { max = "128MiB", of = "node memory" }
"""
# A job may take as many times what it is meant to before it counts as hung.
PATIENCE = 5
MOST_SLOWER = 0.01


@dataclass
class Job:
    name: str
    what: str
    steps: int
    arguments: list[str]
    far: bool = False


# Meant to take about as long as each other where nothing is tuned.
JOBS = [
    Job("far", "reads far storage, steps of 40 ms", 900, ["--step-ms", "40"], far=True),
    Job("far, large batches", "the same, 32 samples a step of 100 ms", 230, ["--step-ms", "100", "--batch-size", "32"], far=True),
    Job("decode", "12 ms of CPU a sample", 1400, ["--step-ms", "40", "--decode-ms", "12"]),
    Job("compute-bound", "steps of 200 ms, data at hand", 800, ["--step-ms", "200"]),
]


class Place:
    """What user nobody needs to run the jobs: Python with torch, the package and the data, each where they can be reached."""

    def __init__(self):
        shutil.rmtree(WORK, ignore_errors=True)
        self.plain, self.slow, self.run_dir = WORK / "plain", WORK / "slow", WORK / "run"
        for folder in (HOME, self.slow, self.run_dir, WORK / "base"):
            folder.mkdir(parents=True)
        subprocess.run([PYTHON, ROOT / "demo" / "images.py", self.plain], check=True)
        shutil.copy(ROOT / "bench" / "control_job.py", HOME)
        asked = "import sys, sysconfig; print(sys.base_prefix); print(sysconfig.get_path('purelib')); print('python%d.%d' % sys.version_info[:2])"
        answer = subprocess.run([PYTHON, "-c", asked], capture_output=True, text=True, check=True).stdout
        self.prefix, self.packages, version = answer.split()
        self.python = WORK / "base" / Path(os.path.realpath(PYTHON)).relative_to(os.path.realpath(self.prefix))
        site = HOME / ".local" / "lib" / version / "site-packages"
        shutil.copytree(ROOT / "target" / "python", site)
        for folder in (HOME, self.run_dir):
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, NOBODY, NOBODY)

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(HOME),
            "PYTHONPATH": self.packages,
            "STALLSCOPE_RUNTIME_DIR": str(self.run_dir),
            "STALLSCOPE_KERNEL_SOCKET": str(WORK / "kernel.sock"),
        }

    def log(self, job: Job) -> Path:
        return HOME / f"{job.name.replace(', ', '-').replace(' ', '-')}.jsonl"

    def start(self, job: Job) -> subprocess.Popen:
        """In a mount namespace of its own, as the Python with torch may lie in a folder that is root's alone."""
        data = (self.slow if job.far else self.plain) / "train"
        bound = 'mount --bind "$0" "$1" && shift && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", bound, self.prefix, WORK / "base", *AS_NOBODY]
        command += [self.python, HOME / "control_job.py", data, "--log", self.log(job)]
        command += ["--steps", str(job.steps), "--seconds", "100000", *job.arguments]
        errors = (WORK / "errors").open("a")
        return subprocess.Popen([str(word) for word in command], cwd=HOME, env=self.environment(), stdin=subprocess.DEVNULL,
                                stdout=errors, stderr=errors)


@contextmanager
def storage(place: Place, latency_ms: int):
    """The data set where each read takes `latency_ms`."""
    command = [SLOWFS, place.plain, place.slow, "--for-all", "--mib-per-s", str(FAST_MIB_S), "--latency-ms", str(latency_ms)]
    server = subprocess.Popen([str(word) for word in command])
    try:
        while not mounted(place.slow):
            if server.poll() is not None:
                raise BenchFailed("the slow storage could not be mounted; it needs the package fuse3 and /dev/fuse")
            time.sleep(0.05)
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def mounted(folder: Path) -> bool:
    return f" {folder} " in Path("/proc/mounts").read_text()


def stallscope(place: Place, *words: str) -> str:
    environment = {**os.environ, **place.environment()}
    return subprocess.run([STALLSCOPE, *words], env=environment, cwd=WORK, capture_output=True, text=True).stdout


@contextmanager
def service(place: Place):
    (WORK / "policy.toml").write_text(POLICY)
    words = ["node-service", "--config", "policy.toml", "--user", str(NOBODY - 1), "--socket", WORK / "node.sock", "--state", WORK / "state"]
    with (WORK / "service.printed").open("a") as printed:
        # What the service has open may be nobody's else.
        one = subprocess.Popen([STALLSCOPE, *map(str, words)], cwd=WORK, env={**os.environ, **place.environment()},
                               stdin=subprocess.DEVNULL, stdout=printed, stderr=printed)
    try:
        for _ in range(200):
            if one.poll() is not None:
                raise BenchFailed(f"the service ended; {WORK / 'service.printed'} says why")
            if stallscope(place, "node"):
                break
            time.sleep(0.05)
        yield Service(one.pid)
    finally:
        one.send_signal(signal.SIGTERM)
        one.wait()


def together(place: Place, jobs: list[Job]) -> dict[str, float]:
    """How long each of the jobs took, in seconds."""
    running, taken, begin = {}, {}, time.monotonic()
    try:
        for job in jobs:
            running[job.name] = place.start(job)
        meant = 50 * len(jobs)
        while len(taken) < len(running):
            for name, process in running.items():
                if name not in taken and process.poll() is not None:
                    if process.returncode != 0:
                        raise BenchFailed(f"the job {name} failed; {WORK / 'errors'} says why")
                    taken[name] = time.monotonic() - begin
            if time.monotonic() - begin > meant * PATIENCE:
                raise BenchFailed(f"jobs still run after {meant * PATIENCE} s")
            time.sleep(0.1)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
                process.wait()
    return taken


@dataclass
class Tuned:
    """What a service did in a round, and what it took for that."""

    audit: list[dict]
    core_percent: float
    memory_mb: float


def one_round(place: Place, jobs: list[Job], latency_ms: int, tuned: bool) -> tuple[dict[str, float], Tuned | None]:
    with storage(place, latency_ms):
        if not tuned:
            return together(place, jobs), None
        shutil.rmtree(WORK / "state", ignore_errors=True)
        with service(place) as node:
            begun, cpu_s = time.monotonic(), node.cpu_seconds()
            taken = together(place, jobs)
            core_percent = 100 * (node.cpu_seconds() - cpu_s) / (time.monotonic() - begun)
            audit = [json.loads(line) for line in stallscope(place, "node", "log", "--json").splitlines()]
            return taken, Tuned(audit, core_percent, node.memory_mb())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="with a service, and as many without")
    parser.add_argument("--latency-ms", type=int, default=15, help="what a read from the far storage takes")
    parser.add_argument("--copies", type=int, default=1, help="of each of the four jobs")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-node: a service and jobs of another user need root; run this as root")
    place = Place()
    jobs = [replace(job, name=f"{job.name} {copy}" if copy else job.name) for copy in range(args.copies) for job in JOBS]
    times, services = {False: [], True: []}, []
    for order in range(2 * args.rounds):
        tuned = order % 4 in (1, 2)
        taken, did = one_round(place, jobs, args.latency_ms, tuned)
        times[tuned].append(taken)
        print(f"  {'with a service' if tuned else 'without one'}: {sum(taken.values()):.0f} s in sum", file=sys.stderr, flush=True)
        if did:
            services.append(did)
            acts = [line["act"] for line in did.audit]
            print(f"  {acts.count('keep')} kept, {acts.count('undo')} undone", file=sys.stderr, flush=True)
            (WORK / "audit.json").write_text(json.dumps(did.audit, indent=1))
    rows, lines = [], []
    for job in jobs:
        alone, with_service = (median(taken[job.name] for taken in times[tuned]) for tuned in (False, True))
        slower = with_service / alone - 1
        spread = max(taken[job.name] for taken in times[False]) / min(taken[job.name] for taken in times[False]) - 1
        rows.append(Row(job.name, "slower than without a service by", 100 * slower, "%", "at most 1", slower <= MOST_SLOWER))
        lines.append([f"{job.name}: {job.what}", f"{alone:.0f}", f"{with_service:.0f}", f"{-slower:+.1%}", f"{spread:.1%}"])
    alone, with_service = (median(sum(taken.values()) for taken in times[tuned]) for tuned in (False, True))
    sooner = 1 - with_service / alone
    spread = max(sum(taken.values()) for taken in times[False]) / min(sum(taken.values()) for taken in times[False]) - 1
    rows.append(Row(f"{len(jobs)} jobs", "sooner in sum by", 100 * sooner, "%", "above 0", sooner > 0))
    lines.append(["in sum", f"{alone:.0f}", f"{with_service:.0f}", f"{sooner:+.1%}", f"{spread:.1%}"])
    core_percent, memory_mb = (median(getattr(did, name) for did in services) for name in ("core_percent", "memory_mb"))
    rows += [
        Row("service and launcher", "CPU", core_percent, "% of a core", f"<= {MAX_CORE_PERCENT}%", core_percent <= MAX_CORE_PERCENT),
        Row("service and launcher", "memory", memory_mb, "MB", f"<= {MAX_MB} MB", memory_mb <= MAX_MB),
    ]
    print(markdown(["job", "without a service, s", "with one, s", "sooner by", "spread without one"], lines))
    print(f"service and launcher: {core_percent:.2f}% of a core, {memory_mb:.1f} MB")
    print(summary(rows))
    print(f"Written to {write('node', rows)}; the last audit of the node is {WORK / 'audit.json'}")


if __name__ == "__main__":
    try:
        main()
    except BenchFailed as error:
        sys.exit(f"bench-node: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
