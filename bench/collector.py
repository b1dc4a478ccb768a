"""`make bench-collector`: what a collector costs beside a job of many ranks, and what it loses when flooded. Needs root.

The job is synthetic (bench/swarm): real processes, pipes and lanes, but no torch. It knows how many records it pushed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from table import ROOT, Row, markdown, summary, write

STALLSCOPE = ROOT / "target" / "release" / "stallscope"
SWARM = ROOT / "target" / "release" / "swarm"
RECORDING = ROOT / "target" / "bench" / "collector.stall"
TICKS = os.sysconf("SC_CLK_TCK")
# Loading the kernel side and greeting every process is paid once, and not what steady watching costs.
SETTLE_SECONDS = 10
MAX_CORE_PERCENT, MAX_MB = 1, 100


@dataclass
class Run:
    result: dict
    report: dict
    # In the steady interval.
    core_percent: float
    # Greatest at any time.
    rss_mb: float

    def lost(self) -> dict[str, int]:
        return {loss["reason"]: loss["count"] for loss in self.report["losses"] if loss["count"]}


def cpu_seconds(pid: int) -> float:
    """CPU time of the process, its children's not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def watch(seconds: float, shape: list[str], options: list[str]) -> Run:
    """Runs the swarm under `stallscope run`."""
    for old in RECORDING.parent.glob("collector.stall*"):
        old.unlink()
    job = [str(SWARM), "--seconds", str(seconds), *shape]
    run = subprocess.Popen(
        [str(STALLSCOPE), "run", "--quiet", "-o", str(RECORDING), *options, "--", *job], stdout=subprocess.PIPE, text=True
    )
    time.sleep(SETTLE_SECONDS)
    start, cpu = time.monotonic(), cpu_seconds(run.pid)
    time.sleep(seconds - SETTLE_SECONDS)
    core_percent = 100 * (cpu_seconds(run.pid) - cpu) / (time.monotonic() - start)
    rss_mb = peak_rss_mb(run.pid)
    output, _ = run.communicate()
    if run.returncode:
        sys.exit(f"bench-collector: `{' '.join(run.args)}` ended with {run.returncode}")
    report = subprocess.run([STALLSCOPE, "report", "--format", "json", RECORDING], stdout=subprocess.PIPE, check=True)
    return Run(json.loads(output.splitlines()[0]), json.loads(report.stdout), core_percent, rss_mb)


def steady(rows: list[Row], seconds: float) -> list[str]:
    """64 ranks of 8 workers at 10 steps a second, with both kinds of evidence."""
    case = "64 ranks x 8 workers, 10 Hz"
    run = watch(seconds, ["--ranks", "64", "--workers", "8", "--hz", "10", "--batch", "32"], [])
    lost = sum(run.lost().values())
    rows += [
        Row(case, "collector", run.core_percent, "% of a core", f"<= {MAX_CORE_PERCENT}%", run.core_percent <= MAX_CORE_PERCENT),
        Row(case, "greatest memory", run.rss_mb, "MB", f"<= {MAX_MB} MB", run.rss_mb <= MAX_MB),
        Row(case, "lost", lost, "records", "0", lost == 0),
    ]
    return line(case, run)


def flood(rows: list[Row], seconds: float, name: str, shape: list[str]) -> list[str]:
    """More records a second than any job sends. Every one has to be there or in the losses."""
    run = watch(seconds, shape, ["--no-kernel"])
    result, lost = run.result, run.lost()
    offered = result["pushed"] + result["refused"]
    counted = run.report["overhead"]["records"] + sum(lost.values())
    rows += [
        Row(name, "offered", offered / seconds, "records/s"),
        Row(name, "lost", sum(lost.values()), "records", "0" if result["refused"] == 0 else None, not lost if result["refused"] == 0 else None),
        Row(name, "neither taken nor counted as lost", offered - counted, "records", "0", offered == counted),
    ]
    return line(name, run)


def line(case: str, run: Run) -> list[str]:
    result = run.result
    offered = result["pushed"] + result["refused"]
    lost = ", ".join(f"{count} {reason}" for reason, count in run.lost().items()) or "0"
    return [case, f"{offered}", f"{run.report['overhead']['records']}", lost, f"{run.core_percent:.2f}%", f"{run.rss_mb:.0f}"]


HEADER = ["case", "records offered by lanes", "records taken", "lost", "of a core", "MB at most"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help=f"of each case, more than {SETTLE_SECONDS}")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-collector: kernel evidence needs root; run this as root")
    if missing := [str(path) for path in (STALLSCOPE, SWARM) if not path.exists()]:
        sys.exit(f"bench-collector: {' and '.join(missing)} not built; run `make build` first")
    RECORDING.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    lines = [
        steady(rows, options.seconds),
        flood(rows, options.seconds, "30,000 records/s", ["--ranks", "8", "--workers", "1", "--hz", "14", "--batch", "262", "--records", "262"]),
        flood(rows, options.seconds, "300,000 records/s", ["--ranks", "8", "--workers", "1", "--hz", "140", "--batch", "262", "--records", "262"]),
    ]
    print(markdown(HEADER, lines))
    print()
    print(summary(rows))
    print(f"Written to {write('collector', rows)}")


if __name__ == "__main__":
    main()
