"""`make bench-overhead`: what watching a real PyTorch loader costs it, beside other tools. Needs root.

A bare and a watched job take turns, epoch by epoch (A B B A …), over a warm cache, until the 95% interval of the
median ratio of their times is narrow enough or there were enough pairs. Pairs that met storage are thrown away.
"""

import argparse
import math
import os
import subprocess
import sys
from statistics import median

from contenders import OURS, PEERS, ROOT, STALLSCOPE, WORK, BenchFailed, Contender, bare
from images import keep_in_memory, make_images
from table import Row, markdown, summary, write

HALF_WIDTH = 0.005
LEAST_RATE = 2000
# What an epoch may read from storage and still count as warm: pages of libraries come and go.
WARM_BYTES = 64 << 10


def interval(values: list[float]) -> tuple[float, float]:
    """95% interval of the median by order statistics; endless below six values."""
    ordered, n = sorted(values), len(values)
    below, rank = 0.0, -1
    while rank + 1 < n:
        below += math.comb(n, rank + 1) / 2**n
        if below > 0.025:
            break
        rank += 1
    return (ordered[rank], ordered[n - 1 - rank]) if rank >= 0 else (-math.inf, math.inf)


class Pairs:
    """Epochs of the bare and of the watched job, two by two."""

    def __init__(self):
        self.wall, self.cpu, self.rates = [], [], []
        self.thrown_away = 0

    def take(self, plain, watched, order: int):
        jobs = [plain, watched] if order % 2 == 0 else [watched, plain]
        epochs = [job.epoch() for job in jobs]
        a, b = epochs if order % 2 == 0 else epochs[::-1]
        if max(a["read_bytes"], b["read_bytes"]) > WARM_BYTES:
            self.thrown_away += 1
            return
        self.wall.append(b["seconds"] / a["seconds"])
        self.cpu.append(b["cpu_s"] / a["cpu_s"])
        self.rates.append(a["samples"] / a["seconds"])

    def half_width(self) -> float:
        low, high = interval(self.wall)
        return (high - low) / 2


def measure(contender: Contender, most: int, half_width: float) -> Pairs:
    """Raises BenchFailed."""
    pairs = Pairs()
    with contender.job() as watched:
        plain = bare()
        try:
            for order in range(2 * most):
                pairs.take(plain, watched, order)
                if len(pairs.wall) >= most or (len(pairs.wall) >= 6 and pairs.half_width() <= half_width):
                    break
        finally:
            plain.close()
    if len(pairs.wall) < 5:
        raise BenchFailed(f"{contender.name}: only {len(pairs.wall)} pairs kept their files in memory; free some")
    return pairs


def measure_all(most: int) -> tuple[list[Row], list[list[str]]]:
    rows, lines = [], []
    for contender in OURS + PEERS:
        ours = contender in OURS
        pairs = measure(contender, most if ours else min(most, 8), HALF_WIDTH if ours else 0.02)
        low, high = interval(pairs.wall)
        ratio, cpu = median(pairs.wall), median(pairs.cpu)
        holds = None if contender.bar is None else ratio - 1 <= contender.bar
        bar = "-" if contender.bar is None else f"<= {contender.bar:.0%}"
        narrow = pairs.half_width() <= HALF_WIDTH
        lines.append(
            [
                contender.name,
                f"{100 * (ratio - 1):+.2f}%",
                f"{100 * (low - 1):+.2f} to {100 * (high - 1):+.2f}",
                f"{100 * (cpu - 1):+.2f}%",
                str(len(pairs.wall)),
                str(pairs.thrown_away),
                f"{median(pairs.rates):.0f}",
                bar,
                "" if holds is None else "yes" if holds else "no",
            ]
        )
        print(" | ".join(lines[-1]), flush=True)
        rows.append(Row(contender.name, "job time", 100 * (ratio - 1), "%", None if holds is None else bar, holds))
        rows.append(Row(contender.name, "job CPU", 100 * (cpu - 1), "%"))
        width = 100 * pairs.half_width()
        barred = contender.bar is not None
        rows.append(
            Row(
                contender.name,
                "half-width of the 95% interval",
                width if math.isfinite(width) else -1,
                "%",
                "<= 0.5%" if barred else None,
                narrow if barred else None,
            )
        )
        rate = median(pairs.rates)
        rows.append(Row(contender.name, "bare job", rate, "samples/s", f">= {LEAST_RATE}", rate >= LEAST_RATE))
    return rows, lines


# Costs of single events, measured by programs of those who know them; each prints its own table.
PARTS = {
    "a syscall": ["cargo", "run", "--release", "--quiet", "-p", "stallscope-ebpf", "--example", "syscall_cost"],
    "a sample": [sys.executable, str(ROOT / "probe" / "python" / "bench_shim.py")],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=120, help="at most, a mode")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-overhead: kernel evidence needs root; run this as root")
    if not STALLSCOPE.exists():
        sys.exit(f"bench-overhead: {STALLSCOPE} is not built; run `make build` first")
    if missing := [reason for contender in PEERS if (reason := contender.missing())]:
        sys.exit("bench-overhead: " + "; ".join(missing))
    WORK.mkdir(parents=True, exist_ok=True)
    make_images(WORK / "images")
    keep_in_memory(WORK / "images")
    try:
        rows, lines = measure_all(options.pairs)
    except BenchFailed as error:
        sys.exit(f"bench-overhead: {error}")
    header = ["watched by", "job time", "95% interval", "job CPU", "pairs", "cold", "samples/s bare", "bar", "holds"]
    print("\nBeside the same job unwatched, medians of pairs:\n")
    print(markdown(header, lines))
    print()
    print(summary(rows))
    print(f"Written to {write('overhead', rows)}")
    failed = False
    for what, command in PARTS.items():
        print(f"\nWhat watching costs {what}:\n", flush=True)
        failed |= subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode != 0
    if failed:
        sys.exit("bench-overhead: a part could not be measured; see above")


if __name__ == "__main__":
    main()
