"""`make bench-knobs`: what each knob that the controller turns is worth to the job of `make demo ACT=1`.

The job trains on far storage and saves too often, under `run --tune act --memory`. It runs with all knobs free, and with one of them held at
its start value by its user, whom the controller leaves it to; in turns, round by round. What is compared is goodput: samples trained
in the run's time, times the share of them that failures leave by Daly's (2006) model, with the interval of saves at the run's end.
Needs /dev/fuse and fuse3, as `make demo ACT=1`. Four runs a round, of --minutes each.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from control_real import BenchFailed, Scenario, images, storage
from table import ROOT, Row, markdown, summary, write

WORK = ROOT / "target" / "bench" / "knobs"
PYTHON = ROOT / ".venv" / "bin" / "python"
STALLSCOPE = ROOT / "target" / "release" / "stallscope"
NAME = "bench-knobs"
MTBF_S = 600
# The job's own, and the cache that it begins with.
START = {"workers": 2, "prefetch": 4, "cache.bytes": 16 << 20, "ckpt.interval": 1}
FREE = "all free"
# Which knobs are held, at the values of START.
HELD = {
    "workers and prefetch held": ["workers=2", "prefetch=4"],
    "cache held": ["cache.bytes=16MiB"],
    "checkpoint interval held": ["ckpt.interval=1s"],
}
FAR = Scenario("far", "each read takes 12 ms, however many are under way", [], latency_ms=12, mib_per_s=400)


def hold(knobs: list[str], job: subprocess.Popen):
    """Sets the knobs as the job's user, as soon as they are there."""
    left = list(knobs)
    while left and job.poll() is None:
        time.sleep(0.2)
        left = [knob for knob in left if not is_set(knob)]
    if left:
        raise BenchFailed(f"the job ended before {', '.join(left)} could be held")


def is_set(knob: str) -> bool:
    return subprocess.run([STALLSCOPE, "knobs", NAME, "set", knob], capture_output=True).returncode == 0


def run(data: Path, case: str, minutes: float) -> dict:
    recording = WORK / f"{case.replace(' ', '-')}.stall"
    recording.unlink(missing_ok=True)
    saves = WORK / "checkpoint"
    shutil.rmtree(saves, ignore_errors=True)
    command = [STALLSCOPE, "run", "--quiet", "--name", NAME, "-o", recording, "--tune", "act", "--memory", "4GiB", "--"]
    command += [PYTHON, ROOT / "demo" / "train.py", data.parent, "--epochs", "1", "--minutes", minutes]
    command += ["--checkpoint", saves.with_suffix(".pt"), "--save-every", "1s", "--table-mb", "200"]
    job = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        hold(HELD.get(case, []), job)
        _, err = job.communicate()
    finally:
        job.kill()
    shutil.rmtree(saves, ignore_errors=True)
    if job.returncode != 0:
        raise BenchFailed(f"{case}: the job failed: {err.strip()[-400:]}")
    report = subprocess.run([STALLSCOPE, "report", recording, "--format", "json"], capture_output=True, text=True, check=True)
    return json.loads(report.stdout)


def goodput(report: dict) -> float:
    """Samples a second that count in the end."""
    phases = [phase for phase in report["phases"] if phase["phase"] != "startup"]
    samples = sum(phase["samples"] for phase in phases if phase["phase"] == "training")
    exposed = values(report)["ckpt.interval"] / MTBF_S
    return samples / (sum(phase["wall_ns"] for phase in phases) / 1e9) * exposed / math.expm1(exposed)


def values(report: dict) -> dict:
    """Of the knobs of the loader that trains, and of the job's, at the end: by the audit, as some go before the recording ends."""
    applied = [line for line in report["audit"] if line["act"] == "applied" and line["loader"] in (None, 0)]
    return START | {line["knob"]: line["to_value"] for line in applied}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=3)
    args = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    cases = [FREE, *HELD]
    reached: dict[str, list[float]] = {case: [] for case in cases}
    ends: dict[str, list[dict]] = {case: [] for case in cases}
    with storage(FAR, images()) as data:
        for turn in range(args.rounds):
            # Each round begins with another, so that none is always the first.
            for case in cases[turn % len(cases) :] + cases[: turn % len(cases)]:
                report = run(data, case, args.minutes)
                reached[case].append(goodput(report))
                ends[case].append(values(report))
                print(
                    f"  round {turn + 1}, {case}: {reached[case][-1]:.1f} samples/s, {ends[case][-1]}",
                    file=sys.stderr,
                    flush=True,
                )
    rows, lines = [Row(FREE, "goodput", median(reached[FREE]), "samples/s")], []
    for case in cases:
        ratios = [held / free - 1 for held, free in zip(reached[case], reached[FREE])]
        at_end = {
            name: median(end[name] for end in ends[case])
            for name in START
        }
        line = [case, f"{median(reached[case]):.1f}"]
        line += ["", ""] if case == FREE else [f"{median(ratios):+.1%}", f"{min(ratios):+.1%} to {max(ratios):+.1%}"]
        line += [
            f"{at_end['workers']:.0f}",
            f"{at_end['prefetch']:.0f}",
            f"{at_end['cache.bytes'] / 2**20:.0f} MiB",
            f"{at_end['ckpt.interval']:.0f} s",
        ]
        lines.append(line)
        if case != FREE:
            worse = all(ratio < 0 for ratio in ratios)
            rows.append(Row(case, "goodput against all free", 100 * median(ratios), "%", "worse in every pair", worse))
    header = ["knobs", "goodput, samples/s", "against all free", "pairs", "workers", "prefetch", "cache", "interval"]
    print(markdown(header, lines))
    print(summary(rows))
    write("knobs", rows)


if __name__ == "__main__":
    main()
