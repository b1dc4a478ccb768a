"""`make bench-report`: what it takes to make reports of a day of 8 ranks at 10 steps a second.

The recording is made up (bench/madeup), but written by the real recorder: 6.9 million steps, the older ones
merged as in any recording. Every report is a process of its own; its memory is the most it ever had.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from table import ROOT, Row, markdown, summary, write

STALLSCOPE = ROOT / "target" / "release" / "stallscope"
MADEUP = ROOT / "target" / "release" / "madeup"
RECORDING = ROOT / "target" / "bench" / "day.stall"
OUT = ROOT / "target" / "bench" / "day"
MAX_SECONDS, MAX_MB, MAX_OPEN_MS = 10, 500, 1000
# What people look at has bars; the exports, which hold every step, are only shown.
BARRED = ["text", "markdown", "json", "html"]
SHOWN = ["openmetrics", "csv", "parquet", "perfetto"]
FOLDERS = ["csv", "parquet"]


@dataclass
class Report:
    seconds: list[float]
    mb: float
    size_mb: float


def run(command: list[str]) -> tuple[float, float]:
    """Seconds and greatest resident memory in MB of a command that has to succeed."""
    start = time.monotonic()
    # What it says there is a line or two, which a pipe holds.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"bench-report: {' '.join(command)} failed: {process.stderr.read().strip()}")
    process.stderr.close()
    return seconds, usage.ru_maxrss * 1024 / 1e6


def size_mb(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def measure(words: list[str], out: Path | None, times: int) -> Report:
    report = Report([], 0, 0)
    for _ in range(times):
        seconds, mb = run([str(STALLSCOPE), *words, *(["-o", str(out)] if out else [])])
        report.seconds.append(seconds)
        report.mb = max(report.mb, mb)
        if out:
            report.size_mb = size_mb(out)
            shutil.rmtree(out) if out.is_dir() else out.unlink()
    return report


def open_ms(times: int) -> list[float]:
    command = [str(MADEUP), "open", str(RECORDING)]
    return [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(times)]


def make_recording() -> None:
    """Makes the recording anew when what writes it changed."""
    if RECORDING.exists() and RECORDING.stat().st_mtime > MADEUP.stat().st_mtime:
        return
    for old in RECORDING.parent.glob("day.stall*"):
        old.unlink()
    print("making up a day of 8 ranks at 10 steps a second, which takes some minutes", file=sys.stderr)
    seconds, mb = run([str(MADEUP), "make", str(RECORDING)])
    print(f"made in {seconds:.0f} s with {mb:.0f} MB: {size_mb(RECORDING):.0f} MB", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="each report is made; the median counts")
    options = parser.parse_args()
    if missing := [str(path) for path in (STALLSCOPE, MADEUP) if not path.exists()]:
        sys.exit(f"bench-report: {' and '.join(missing)} not built; run `make bench-report`, which builds them")
    OUT.mkdir(parents=True, exist_ok=True)
    make_recording()

    rows: list[Row] = []
    lines: list[list[str]] = []

    def take(case: str, report: Report, barred: bool) -> None:
        seconds = statistics.median(report.seconds)
        fast, small = (seconds < MAX_SECONDS, report.mb < MAX_MB) if barred else (None, None)
        rows.append(Row(case, "time", seconds, "s", f"< {MAX_SECONDS}" if barred else None, fast))
        rows.append(Row(case, "memory", report.mb, "MB", f"< {MAX_MB}" if barred else None, small))
        rows.append(Row(case, "size", report.size_mb, "MB"))
        spread = f"{min(report.seconds):.1f} to {max(report.seconds):.1f}"
        lines.append([case, f"{seconds:.1f} s", spread, f"{report.mb:.0f} MB", f"{report.size_mb:.1f} MB"])

    for form in BARRED + SHOWN:
        out = OUT / (form if form in FOLDERS else f"report.{form}")
        take(form, measure(["report", str(RECORDING), "--format", form], out, options.times), form in BARRED)
    take("diff with itself", measure(["diff", str(RECORDING), str(RECORDING)], None, options.times), False)

    opened = open_ms(options.times)
    median = statistics.median(opened)
    rows.append(Row("open", "to the first screen's data", median, "ms", f"< {MAX_OPEN_MS}", median < MAX_OPEN_MS))
    lines.append(["open, to the first screen's data", f"{median:.0f} ms", f"{min(opened):.0f} to {max(opened):.0f}", "", ""])

    print(f"A recording of {size_mb(RECORDING):.0f} MB.\n")
    print(markdown(["report", "median", "spread", "memory at most", "size"], lines))
    print()
    print(summary(rows))
    print(f"Written to {write('report', rows)}")
    shutil.rmtree(OUT)


if __name__ == "__main__":
    main()
