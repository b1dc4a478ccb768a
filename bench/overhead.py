"""`make bench-overhead`: what watching a real PyTorch loader costs it, beside other tools. Needs root.

The headlines come from two jobs, one whose workers and trainer leave no core free and one that leaves one. In each,
everything of ours is switched on and off in turns (A B B A …), in trainer and workers alike, until the 95% interval of the
ratio is narrow enough or time is up. Both parts of a pair have the same workers, as new ones may be a third faster or slower for as
long as they live, and every few pairs have others. What starting workers costs is in `new workers each time`. The others, as tools can't be switched, from a bare and a watched job in
turns, each alone: two jobs that do the same differ by several percent, so these figures are coarse. All over a warm
cache; up to an hour.

Where the machine's noise is larger than what measuring costs, *counted* tells more: how often each measured event happens in
the job (context switches, samples, batches, steps), times what it costs by itself, as a share of the job's CPU time; and the CPU
time of the collector and of the service beside it, as a share of the same. Neither has effects on caches in it. The time of the
*kernel programs* is what the kernel itself counts (kernel.bpf_stats_enabled) while the job trains: with the job's caches, in which
they take several times as long as in a loop of their own.
"""

import argparse
import math
import os
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist, fmean, median

from contenders import HEADLINE, OURS, PEERS, STALLSCOPE, WORK, BenchFailed, Contender, bare
from images import keep_in_memory, make_images
from parts import measure_parts
from table import Row, markdown, summary, write

HALF_WIDTH = 0.005
# Of a job, and the rows that have what one of them costs: of a pipe's round trip, which is two switches, half.
EVENTS = {
    "switches": (0.5, "default, observed process", "pipe round trip, two switches: extra"),
    "samples": (1, "sample", "time"),
    # A batch is an event of its worker's; its wait and its step are the trainer's, with the optimiser's.
    "batches": (4, "event", "time"),
}
# Fewer values have no 95% interval.
LEAST_FOR_INTERVAL = 6
LEAST_RATE = 2000
PROGRAMS_EPOCHS = 30
# What an epoch may read from storage and still count as warm: pages of libraries come and go.
WARM_BYTES = 64 << 10


def walsh_averages(values: list[float]) -> list[float]:
    """Of each value with itself and with each other one, in order."""
    return sorted((a + b) / 2 for place, a in enumerate(values) for b in values[place:])


def middle(values: list[float]) -> float:
    """Hodges and Lehmann's: the median of Walsh averages, which needs two thirds of the pairs that a median does."""
    return median(walsh_averages(values))


def interval(values: list[float]) -> tuple[float, float]:
    """95% interval of the middle by Wilcoxon's signed ranks in their normal approximation; endless below six values."""
    n = len(values)
    if n < LEAST_FOR_INTERVAL:
        return -math.inf, math.inf
    ordered = walsh_averages(values)
    rank = int(n * (n + 1) / 4 - NormalDist().inv_cdf(0.975) * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    rank = max(rank, 0)
    return ordered[rank], ordered[-1 - rank]


class Block:
    """Means over the epochs of one job that met no storage."""

    def __init__(self, job, epochs: int, how: str = ""):
        """`how`: what the job is asked for, `bare` without ours and `new` with new workers. Raises BenchFailed."""
        hooks = how.removesuffix("new")
        # The first under its watcher is a warm-up.
        job.epoch(how)
        taken = [job.epoch(hooks) for _ in range(epochs)]
        warm = [epoch for epoch in taken if epoch["read_bytes"] <= WARM_BYTES]
        self.cold = len(taken) - len(warm)
        self.as_wanted = all(epoch["as_wanted"] for epoch in taken)
        self.usable = bool(warm)
        if warm:
            self.seconds = fmean(epoch["seconds"] for epoch in warm)
            self.cpu_s = fmean(epoch["cpu_s"] for epoch in warm)
            self.rate = warm[0]["samples"] / self.seconds
            # Events by what they are, for each second of the job's CPU time.
            self.events = {name: fmean(epoch[name] / epoch["cpu_s"] for epoch in warm) for name in EVENTS}


def in_turn(first, second, order: int) -> tuple:
    return (first, second) if order % 2 == 0 else (second, first)


class Pairs:
    """Ratios of watched to bare jobs that ran one after the other."""

    def __init__(self):
        self.wall, self.cpu, self.rates, self.events, self.collectors = [], [], [], [], []
        # Of the job's CPU time.
        self.programs = None
        self.cold_epochs = 0

    def jobs(self, contender: Contender, order: int):
        """A bare job and a watched one."""
        blocks = []
        for start in in_turn(bare, contender.start, order):
            with start() as job:
                blocks.append(Block(job, contender.epochs, "new"))
        self.take(*in_turn(*blocks, order))

    def switched(self, contender: Contender, job, order: int):
        """The same job without and with us."""
        if order % contender.pairs_of_workers == 0:
            # Begun with ours: the other way, these workers would never have any.
            job.switch(True)
            job.epoch("new")
        blocks = []
        for on in in_turn(False, True, order):
            job.switch(on)
            begun, before_s = time.monotonic(), job.collectors_cpu_s()
            block = Block(job, contender.epochs, ("" if on else "bare") + (" new" if contender.new_each_time else ""))
            if not block.as_wanted:
                raise BenchFailed("a worker could not be switched: its batches are fetched by what this bench does not know")
            if on and block.usable:
                # By ticks of 10 ms, of which most pairs have none: their mean tells, and no median.
                cores = (job.collectors_cpu_s() - before_s) / (time.monotonic() - begun)
                self.collectors.append(cores / (block.cpu_s / block.seconds))
            blocks.append(block)
        self.take(*in_turn(*blocks, order))

    def take(self, plain: Block, watched: Block):
        self.cold_epochs += plain.cold + watched.cold
        if plain.usable and watched.usable:
            self.wall.append(watched.seconds / plain.seconds)
            self.cpu.append(watched.cpu_s / plain.cpu_s)
            self.rates.append(plain.rate)
            self.events.append(plain.events)

    def spread(self) -> tuple[float, float]:
        """The 95% interval of the middle; of few pairs, the least and the greatest."""
        few = len(self.wall) < LEAST_FOR_INTERVAL
        return (min(self.wall), max(self.wall)) if few else interval(self.wall)

    def half_width(self) -> float:
        low, high = interval(self.wall)
        return (high - low) / 2


BPF_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def programs(job) -> float:
    """Time of the kernel programs while a job trains, as a share of its CPU time."""
    job.switch(True)
    before = BPF_STATS.read_text()
    BPF_STATS.write_text("1")
    try:
        job.epoch("new")
        begun_ns = job.programs_ns()
        cpu_s = sum(job.epoch()["cpu_s"] for _ in range(PROGRAMS_EPOCHS))
        return (job.programs_ns() - begun_ns) / 1e9 / cpu_s
    finally:
        BPF_STATS.write_text(before)


def measure(contender: Contender, most: int, with_programs: bool = False) -> Pairs:
    """Raises BenchFailed."""
    pairs, end = Pairs(), time.monotonic() + contender.seconds
    with contender.start() if contender.switched else nullcontext() as job:
        for order in range(min(most, contender.pairs)):
            if contender.switched:
                pairs.switched(contender, job, order)
            else:
                pairs.jobs(contender, order)
            if time.monotonic() >= end or pairs.half_width() <= HALF_WIDTH:
                break
        if with_programs and contender.switched:
            pairs.programs = programs(job)
    if not pairs.wall:
        raise BenchFailed("no pair of jobs kept its files in memory; free some")
    return pairs


def counted(name: str, pairs: Pairs, parts: list[Row]) -> list[Row]:
    """What a job's events cost by themselves, and the collectors, in per cent of its CPU time; none where the cost of one is not known."""
    cost_ns = {(row.case, row.metric): row.value for row in parts}
    total = 0.0
    for event, (weight, case, metric) in EVENTS.items():
        if (case, metric) not in cost_ns:
            return []
        total += median(of[event] for of in pairs.events) * weight * max(cost_ns[case, metric], 0.0)
    unit = "% of the job's CPU time"
    shares = {"counted": total / 1e9, "kernel programs": pairs.programs, "collectors": fmean(pairs.collectors)}
    return [Row(name, of, share * 100, unit) for of, share in shares.items()]


class Table:
    """Gathers figures, and prints each as it comes."""

    HEADER = ["watched by", "job time", "spread", "job CPU", "pairs", "cold epochs", "samples/s bare", "bar", "holds"]

    def __init__(self):
        self.rows: list[Row] = []
        self.lines: list[list[str]] = []

    def add(self, contender: Contender, pairs: Pairs):
        low, high = pairs.spread()
        ratio, cpu, rate = middle(pairs.wall), middle(pairs.cpu), median(pairs.rates)
        barred = contender.bar is not None
        holds = ratio - 1 <= contender.bar if barred else None
        bar = f"<= {contender.bar:.0%}" if barred else None
        self.line(
            contender.name,
            f"{100 * (ratio - 1):+.2f}%",
            f"{100 * (low - 1):+.2f} to {100 * (high - 1):+.2f}",
            f"{100 * (cpu - 1):+.2f}%",
            str(len(pairs.wall)),
            str(pairs.cold_epochs),
            f"{rate:.0f}",
            bar or "-",
            {None: "", True: "yes", False: "no"}[holds],
        )
        self.rows.append(Row(contender.name, "job time", 100 * (ratio - 1), "%", bar, holds))
        self.rows.append(Row(contender.name, "job CPU", 100 * (cpu - 1), "%"))
        self.rows.append(Row(contender.name, "half of the spread", 50 * (high - low), "%"))
        if barred:
            width = pairs.half_width()
            shown = 100 * width if math.isfinite(width) else 100.0
            self.rows.append(
                Row(contender.name, "half-width of the 95% interval", shown, "%", "<= 0.5%", width <= HALF_WIDTH)
            )
            self.rows.append(Row(contender.name, "bare job", rate, "samples/s", f">= {LEAST_RATE}", rate >= LEAST_RATE))

    def miss(self, contender: Contender):
        self.line(contender.name, "not measured", *[""] * 5, "-" if contender.bar is None else f"<= {contender.bar:.0%}", "no")
        self.rows.append(Row(contender.name, "measured", 0, "", "1", False))

    def line(self, *cells: str):
        self.lines.append(list(cells))
        print(" | ".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="at most, of any contender")
    parser.add_argument("--seconds", type=float, default=HEADLINE["seconds"], help="for each headline")
    parser.add_argument("--only", action="append", help="a contender's name; all by default")
    options = parser.parse_args()
    # A shell that started us in the background has SIGINT ignored, which tools that end by it would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.geteuid() != 0:
        sys.exit("bench-overhead: kernel evidence needs root; run this as root")
    if not STALLSCOPE.exists():
        sys.exit(f"bench-overhead: {STALLSCOPE} is not built; run `make build` first")
    chosen = [one for one in OURS + PEERS if not options.only or one.name in options.only]
    chosen = [replace(one, seconds=options.seconds) if one.switched else one for one in chosen]
    if missing := [reason for contender in chosen if (reason := contender.missing())]:
        sys.exit("bench-overhead: " + "; ".join(missing))
    WORK.mkdir(parents=True, exist_ok=True)
    make_images(WORK / "images")
    keep_in_memory(WORK / "images")
    table, failures, headlines = Table(), [], {}
    for contender in chosen:
        try:
            pairs = measure(contender, options.pairs, with_programs=True)
            table.add(contender, pairs)
            if contender.switched:
                headlines[contender.name] = pairs
        except BenchFailed as error:
            table.miss(contender)
            failures.append(f"{contender.name}: {error}")
    print("\nBeside the same job unwatched, the middle of pairs:\n")
    print(markdown(Table.HEADER, table.lines), flush=True)
    part_rows, part_failures = measure_parts()
    counts = [row for name, pairs in headlines.items() for row in counted(name, pairs, part_rows)]
    print("\nWhat the events of each job cost by themselves, and the collectors beside it:\n")
    print(markdown(["job", "of", "of its CPU time"], [[row.case, row.metric, f"{row.value:.2f}%"] for row in counts]), flush=True)
    rows, failures = table.rows + counts + part_rows, failures + part_failures
    print()
    print(summary(rows))
    print(f"Written to {write('overhead', rows)}")
    if failures:
        sys.exit("bench-overhead: could not be measured:\n" + "\n".join(failures))


if __name__ == "__main__":
    main()
