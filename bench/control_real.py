"""The second half of `make bench-control`: real jobs on slow storage, tuned, untouched and at every setting of a grid.

Needs /dev/fuse: the storage is demo/slowfs, which takes a time for each read or gives a rate to all readers together.
Each scenario's runs are made in turns, round by round. What is compared is the job's own account of its steps, after a
warm-up in which the controller may probe; what the whole run took is printed beside it. About an hour.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from table import ROOT, Row, markdown, summary, write

WORK = ROOT / "target" / "bench" / "control"
PYTHON = ROOT / ".venv" / "bin" / "python"
STALLSCOPE = ROOT / "target" / "release" / "stallscope"
SLOWFS = ROOT / "target" / "release" / "slowfs"
# So fast that nobody waits for it.
FAST_MIB_S = 4096
# What a setting of the grid or an untouched run needs to be at its pace.
SETTLE_S = 6


class BenchFailed(Exception):
    pass


@dataclass
class Scenario:
    name: str
    what: str
    job: list[str]
    latency_ms: int = 0
    mib_per_s: float = FAST_MIB_S
    # A neighbour that reads the same storage, this many seconds on and as many off.
    bursts_s: float = 0
    # (workers, batches ahead a worker)
    grid: list[tuple[int, int]] = field(default_factory=list)
    negative: bool = False


START = (1, 2)
GRID = [(1, 2), (1, 8), (2, 2), (2, 8), (4, 2), (4, 8), (6, 2)]
SCENARIOS = [
    Scenario("latency", "each read takes 12 ms, as on a far file system", ["--step-ms", "60"], latency_ms=12, grid=GRID),
    Scenario("bandwidth", "all readers share 2.5 MiB/s", ["--step-ms", "60"], mib_per_s=2.5, grid=GRID),
    Scenario("decode", "a sample takes 12 ms of CPU", ["--step-ms", "60", "--decode-ms", "12"], grid=GRID),
    Scenario("bursty", "a neighbour takes the storage for seconds", ["--step-ms", "60"], latency_ms=6, mib_per_s=8,
             bursts_s=4, grid=GRID),
    Scenario("compute-bound", "the device needs 250 ms for what a worker makes in less", ["--step-ms", "250"], negative=True),
    Scenario("all cached", "nothing to read from storage, the device needs 100 ms", ["--step-ms", "100"], negative=True),
]


def images() -> Path:
    """The folder of the demo's data set, made where it is not there."""
    plain = WORK / "plain"
    subprocess.run([PYTHON, ROOT / "demo" / "images.py", plain], check=True)
    return plain


@contextmanager
def storage(scenario: Scenario, plain: Path):
    """The data set on the scenario's storage; its folder."""
    mount = WORK / "slow"
    mount.mkdir(parents=True, exist_ok=True)
    subprocess.run(["fusermount3", "-uzq", mount], stderr=subprocess.DEVNULL)
    arguments = [plain, mount, "--mib-per-s", str(scenario.mib_per_s), "--latency-ms", str(scenario.latency_ms)]
    server = subprocess.Popen([SLOWFS, *arguments])
    neighbour = None
    try:
        while not os.path.ismount(mount):
            if server.poll() is not None:
                raise BenchFailed("the slow storage could not be mounted; it needs the package fuse3 and /dev/fuse")
            time.sleep(0.05)
        if scenario.bursts_s:
            neighbour = subprocess.Popen([sys.executable, __file__, "neighbour", mount / "train", str(scenario.bursts_s)])
        yield mount / "train"
    finally:
        for process in filter(None, (neighbour, server)):
            process.send_signal(signal.SIGTERM)
            process.wait()


def be_neighbour(folder: Path, bursts_s: float):
    """Reads the folder's files, `bursts_s` seconds on and as many off."""
    while True:
        until = time.monotonic() + bursts_s
        for path in folder.rglob("*.jpg"):
            if time.monotonic() >= until:
                break
            path.read_bytes()
        time.sleep(max(0, until + bursts_s - time.monotonic()))


@dataclass
class Taken:
    """What one run did, samples a second."""

    settled: float
    whole: float
    kept: int = 0
    undone: int = 0
    recording: Path | None = None


def rate(steps: list[dict], after_s: float) -> float:
    """Samples a second from `after_s` seconds after the first step on."""
    late = [step for step in steps if step["s"] >= steps[0]["s"] + after_s]
    if len(late) < 10:
        raise BenchFailed(f"only {len(late)} steps were made after {after_s:.0f} s; the run is too short")
    return sum(step["samples"] for step in late[1:]) / (late[-1]["s"] - late[0]["s"])


def run(scenario: Scenario, data: Path, setting: tuple[int, int], seconds: float, settle_s: float, tuned: bool) -> Taken:
    log = WORK / "steps.jsonl"
    recording = WORK / f"{scenario.name.replace(' ', '-')}{'-tuned' if tuned else ''}.stall"
    recording.unlink(missing_ok=True)
    command = [STALLSCOPE, "run", "--name", "bench-control", "-o", recording]
    command += ["--tune", "act"] if tuned else []
    command += ["--", PYTHON, ROOT / "bench" / "control_job.py", data, "--log", log, "--seconds", str(seconds)]
    command += ["--workers", str(setting[0]), "--prefetch", str(setting[1]), *scenario.job]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchFailed(f"{scenario.name}: the job failed: {done.stderr.strip()[-400:]}")
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    audit = audit_of(recording) if tuned else []

    def count(act):
        return sum(event["act"] == act for event in audit)

    return Taken(rate(steps, settle_s), rate(steps, 0), count("keep") + count("release"), count("undo"), recording)


def audit_of(recording: Path) -> list[dict]:
    done = subprocess.run([STALLSCOPE, "audit", recording, "--json"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    return answer["audit"] if isinstance(answer, dict) else answer


def compare(scenario: Scenario, plain: Path, args) -> tuple[list[Row], list[str]]:
    """Untouched, tuned and the grid in turns; rows and the line of the table."""
    untouched, tuned, grid = [], [], {setting: [] for setting in scenario.grid}
    with storage(scenario, plain) as data:
        for _ in range(args.rounds):
            untouched.append(run(scenario, data, START, args.short, SETTLE_S, tuned=False))
            tuned.append(run(scenario, data, START, args.warm_up + args.short, args.warm_up, tuned=True))
            for setting in grid:
                grid[setting].append(run(scenario, data, setting, args.short, SETTLE_S, tuned=False))
            print(f"  {scenario.name}: untouched {untouched[-1].settled:.1f}, tuned {tuned[-1].settled:.1f} samples/s,"
                  f" {tuned[-1].kept} kept, {tuned[-1].undone} undone", file=sys.stderr, flush=True)
    before = median(taken.settled for taken in untouched)
    after = median(taken.settled for taken in tuned)
    gain = after / before - 1
    kept, undone = (median(getattr(taken, name) for taken in tuned) for name in ("kept", "undone"))
    rows, line = [], [scenario.name, f"{before:.1f}", f"{after:.1f}", f"{gain:+.1%}"]
    if scenario.negative:
        rows.append(Row(scenario.name, "slower than untouched by", -100 * gain, "%", "at most 1", -gain <= 0.01))
        rows.append(Row(scenario.name, "changes kept", kept, "", "none", kept == 0))
        line += ["", ""]
    else:
        best, setting = max((median(taken.settled for taken in runs), setting) for setting, runs in grid.items())
        regret = 1 - after / best
        rows.append(Row(scenario.name, "gain over untouched", 100 * gain, "%"))
        rows.append(Row(scenario.name, "regret against the best static setting", 100 * regret, "%", "at most 5", regret <= 0.05))
        line += [f"{best:.1f} ({setting[0]} x {setting[1]})", f"{regret:.1%}"]
    whole = median(taken.whole for taken in tuned) / median(taken.whole for taken in untouched) - 1
    rows.append(Row(scenario.name, "gain with the warm-up", 100 * whole, "%"))
    return rows, line + [f"{whole:+.1%}", f"{kept:.0f}", f"{undone:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of scenarios, separated by commas")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up", type=float, default=90, help="seconds in which the controller may probe")
    parser.add_argument("--short", type=float, default=25, help="seconds that are compared")
    args = parser.parse_args()
    plain = images()
    chosen = [scenario for scenario in SCENARIOS if not args.only or scenario.name in args.only.split(",")]
    rows, lines = [], []
    for scenario in chosen:
        print(f"{scenario.name}: {scenario.what}", file=sys.stderr, flush=True)
        more, line = compare(scenario, plain, args)
        rows += more
        lines.append(line)
    header = ["real jobs, samples/s", "untouched", "tuned", "gain", "best static (workers x ahead)", "regret",
              "gain, warm-up too", "kept", "undone"]
    print(markdown(header, lines))
    print(summary(rows))
    write("control-real", rows)


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["neighbour"]:
            be_neighbour(Path(sys.argv[2]), float(sys.argv[3]))
        else:
            main()
    except BenchFailed as error:
        sys.exit(f"bench-control: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
