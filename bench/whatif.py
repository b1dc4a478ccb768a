"""`make bench-whatif`: what `stallscope what-if` says would happen, against the runs really made. Needs root.

Each job is profiled at one setting by `stallscope run`, asked about others, and then really run at each of these: no
such run is used to fit anything. Beside it the closed form of DS-Analyzer (Mohan et al., VLDB 2021), min(G, P, F), on
the same profile, as published and as coded (F alone). All of it is done in rounds, so that a machine that is busy now
and then is so for all. A run is made again where the host gave much of its CPU time to others.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field

import stolen
from table import ROOT, Row, markdown, summary, write

sys.path.insert(0, str(ROOT / "truth"))

from storage import SlowStorage, StorageError, forget  # noqa: E402

STALLSCOPE = ROOT / "target" / "release" / "stallscope"
WORK = ROOT / "target" / "bench" / "whatif"
DISK_MB = 512
MEDIAN_BAR, WORST_BAR = 5.0, 10.0


class BenchFailed(Exception):
    """One sentence on what could not be measured."""


@dataclass
class Point:
    """A setting: what the job is given, what the question is, and what differs for the closed form."""

    name: str
    job: dict
    ask: list[str]
    workers: float = 1.0
    """Times as many."""
    storage: float = 1.0
    cached: float = 0.0


def more_workers(now: int, to: int, **more) -> Point:
    return Point(f"workers {now} -> {to}", {"workers": to, **more}, ["--workers", str(to)], workers=to / now)


def prefetch(now: int, workers: int, factor: int) -> Point:
    to = workers * factor
    return Point(f"prefetch {now} -> {to}", {"factor": factor}, ["--prefetch", str(to)])


def faster(job: dict) -> Point:
    return Point("storage 2x", job, ["--storage", "2x"], storage=2.0)


def cached(percent: int) -> Point:
    return Point(f"{percent}% cached", {"cached": percent}, ["--cache", f"{percent}%"], cached=percent / 100)


@dataclass
class Job:
    """A job as it is profiled, and the settings it is asked about."""

    name: str
    base: dict
    points: list[Point]
    server: bool = False
    mb_s: float = 0


JOBS = [
    Job(
        "service with a delay",
        {"workers": 2, "delay-ms": 4, "decodes": 1, "device-ms": 20},
        [more_workers(2, 1), more_workers(2, 3), more_workers(2, 4), faster({"delay-ms": 2}), cached(40)],
        server=True,
    ),
    Job(
        "disk with a limit",
        {"workers": 2, "decodes": 1, "device-ms": 20},
        [more_workers(2, 1), more_workers(2, 4), faster({"mb-s": 32}), cached(50)],
        mb_s=16,
    ),
    Job(
        "delay and decoding",
        {"workers": 2, "delay-ms": 3, "decodes": 3, "device-ms": 20},
        [more_workers(2, 1), more_workers(2, 3), faster({"delay-ms": 1.5}), cached(50)],
        server=True,
    ),
    Job("decoding", {"workers": 1, "decodes": 5, "device-ms": 10}, [more_workers(1, 2), more_workers(1, 3)]),
    Job(
        "decoding beside CPU training",
        {"workers": 2, "decodes": 4, "compute-ms": 20},
        [more_workers(2, 1), more_workers(2, 3)],
    ),
    Job(
        "bursts",
        {"workers": 1, "decodes": 0.2, "device-ms": 8, "burst-every": 640, "burst-ms": 150},
        [prefetch(2, 1, 8), prefetch(2, 1, 40)],
    ),
    Job(
        "compute-bound",
        {"workers": 2, "delay-ms": 1, "decodes": 0.5, "device-ms": 60},
        [more_workers(2, 4), faster({"delay-ms": 0.5})],
        server=True,
    ),
]


@dataclass
class Figures:
    """What was predicted and measured of one point, a value for each round."""

    predicted: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    published: list[float] = field(default_factory=list)
    coded: list[float] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    base: list[float] = field(default_factory=list)

    def mean(self, name: str) -> float:
        return statistics.mean(getattr(self, name))

    def error(self, name: str = "predicted") -> float:
        """Per cent."""
        return 100 * (self.mean(name) / self.mean("measured") - 1)

    def covered(self) -> bool:
        return self.mean("low") <= self.mean("measured") <= self.mean("high")


class Bench:
    def __init__(self, seconds: float):
        self.seconds = seconds
        self.stolen: list[float] = []
        WORK.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def place(self, job: Job):
        """Where the job's samples come from, as options for it, and how to make that another speed."""
        if job.server:
            server = subprocess.Popen(
                [sys.executable, ROOT / "truth" / "server.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            try:
                yield {"port": int(server.stdout.readline())}, None
            finally:
                server.stdin.close()
                server.wait(10)
        elif job.mb_s:
            with SlowStorage(WORK / "disk.img", WORK / "disk", DISK_MB) as disk:
                file = WORK / "disk" / "samples.bin"
                if not file.exists():
                    partial = file.with_suffix(".partial")
                    partial.write_bytes(os.urandom(256 << 20))
                    partial.rename(file)

                def speed(mb_s: float):
                    forget(WORK / "disk")
                    disk.limit(int(mb_s * (1 << 20)))

                yield {"file": file}, speed
        else:
            yield {}, None

    def run(self, job: Job, options: dict, place, recording=None) -> float:
        """The job's own mean step, in milliseconds. Raises BenchFailed."""
        where, speed = place
        options = {**job.base, **options}
        mb_s = options.pop("mb-s", job.mb_s)
        if speed:
            speed(mb_s)
        words = [word for name, value in {**options, **where}.items() for word in (f"--{name}", str(value))]
        step_ms, share = stolen.least(lambda: self.run_once(job, words, recording or WORK / "other.stall"))
        self.stolen.append(share)
        return step_ms

    def run_once(self, job: Job, words: list[str], recording) -> float:
        recording.unlink(missing_ok=True)
        command = [STALLSCOPE, "run", "-o", recording, "--", sys.executable, ROOT / "bench" / "whatif_job.py"]
        done = subprocess.run(
            [*map(str, command), "--seconds", str(self.seconds), *words],
            capture_output=True,
            text=True,
            timeout=60 + 5 * self.seconds,
            check=False,
        )
        try:
            return json.loads(done.stdout.splitlines()[-1])["step_ms"]
        except (IndexError, ValueError, KeyError):
            raise BenchFailed(f"{job.name} gave no figures: {done.stderr.strip()[-300:]}") from None

    def ask(self, recording, words: list[str]) -> dict:
        done = subprocess.run(
            [STALLSCOPE, "what-if", str(recording), "--json", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchFailed(f"what-if {' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def round(self, job: Job, figures: dict):
        recording = WORK / "profiled.stall"
        with self.place(job) as place:
            base_ms = self.run(job, {}, place, recording)
            for point in job.points:
                answer = self.ask(recording, point.ask)
                here = figures.setdefault((job.name, point.name), Figures())
                here.base.append(base_ms)
                step = answer["then"]["step_ms"]
                # Of the same steps as the job's own account: its first seconds are left out there.
                by = base_ms / answer["now"]["step_ms"]["value"]
                here.predicted.append(step["value"] * by)
                here.low.append(step["low"] * by)
                here.high.append(step["high"] * by)
                published, coded = closed_form(answer["rates"], point)
                here.published.append(published)
                here.coded.append(coded)
                here.measured.append(self.run(job, point.job, place))
                print(
                    f"{job.name}, {point.name}: {base_ms:.1f} ms a step now, {here.predicted[-1]:.1f} predicted "
                    f"({here.low[-1]:.1f} to {here.high[-1]:.1f}), {here.measured[-1]:.1f} measured; "
                    f"{published:.1f} by min(G, P, F); {'; '.join(answer['doubts'])}",
                    flush=True,
                )


def closed_form(rates: dict, point: Point, batch: int = 16) -> tuple[float, float]:
    """DS-Analyzer's steps in milliseconds: of min(G, P, F(x)), and of F(x) alone, which is all that its code prints.

    Its S is the rate of a run with a cold cache, here the rate of the present workers' reading.
    """
    rate = {name: rates[name]["value"] if rates[name] else float("inf") for name in ("compute", "prep", "fetch", "cache")}
    x, storage = point.cached, rate["fetch"] * point.storage
    fetch = 1 / (x / rate["cache"] + (1 - x) / storage) if x / rate["cache"] + (1 - x) / storage else float("inf")
    throughput = min(rate["compute"], rate["prep"] * point.workers, fetch)
    return batch / throughput * 1e3, batch / fetch * 1e3


def show(figures: dict) -> list[Row]:
    lines = []
    for (job, point), one in figures.items():
        lines.append(
            [
                f"{job}: {point}",
                f"{one.mean('base'):.1f}",
                f"{one.mean('predicted'):.1f} ({one.mean('low'):.1f} to {one.mean('high'):.1f})",
                f"{one.mean('measured'):.1f}",
                f"{one.error():+.1f}%",
                "yes" if one.covered() else "no",
                f"{one.error('published'):+.0f}%",
                f"{one.error('coded'):+.0f}%" if one.mean("coded") else "says 0",
            ]
        )
    header = ["job: change", "now, ms", "predicted (95%)", "measured", "error", "in it", "min(G,P,F)", "F alone"]
    print(f"\nA step in milliseconds, means over {len(one.measured)} rounds:\n")
    print(markdown(header, lines))
    rows = []
    for (job, point), one in figures.items():
        case = f"{job}: {point}"
        for name, unit in (("base", "ms"), ("predicted", "ms"), ("low", "ms"), ("high", "ms"), ("measured", "ms")):
            rows.append(Row(case, name, one.mean(name), unit))
        rows.append(Row(case, "error", one.error(), "%"))
        rows.append(Row(case, "error of min(G, P, F)", one.error("published"), "%"))
        rows.append(Row(case, "error of F alone", one.error("coded"), "%"))
    for name, what in (("predicted", "what-if"), ("published", "min(G, P, F)"), ("coded", "F alone")):
        errors = [abs(one.error(name)) for one in figures.values()]
        ours = name == "predicted"
        for metric, value, bar in (
            ("median error", statistics.median(errors), MEDIAN_BAR),
            ("worst error", max(errors), WORST_BAR),
        ):
            rows.append(Row(what, metric, value, "%", f"<= {bar:g}" if ours else None, value <= bar if ours else None))
        print(f"{what}: median error {statistics.median(errors):.1f}%, worst {max(errors):.1f}%, {len(errors)} points")
    covered = 100 * statistics.mean(one.covered() for one in figures.values())
    rows.append(Row("what-if", "measured within the 95% interval", covered, "%"))
    print(f"what-if: {covered:.0f}% of points within their 95% interval")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", help="names of jobs; all by default")
    parser.add_argument("--seconds", type=float, default=8, help="of steady training a run")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    chosen = [job for job in JOBS if not options.jobs or job.name in options.jobs]
    if unknown := set(options.jobs) - {job.name for job in chosen}:
        sys.exit(f"there is no job called {', '.join(sorted(unknown))}; there are {', '.join(j.name for j in JOBS)}")
    figures: dict = {}
    bench = Bench(options.seconds)
    loads = []
    try:
        for _ in range(options.rounds):
            for job in chosen:
                loads.append(os.getloadavg()[0])
                bench.round(job, figures)
    except (BenchFailed, StorageError, subprocess.TimeoutExpired) as error:
        sys.exit(f"bench-whatif: {error}")
    rows = show(figures)
    rows.append(Row("machine", "load average, median over jobs", statistics.median(loads), "tasks"))
    rows.append(Row("machine", "CPU time stolen by the host, worst run", max(bench.stolen), "%"))
    print(
        f"load average meanwhile: {statistics.median(loads):.1f} (its own jobs included); CPU time stolen by the host: "
        f"{statistics.median(bench.stolen):.1f}% in the median run, {max(bench.stolen):.1f}% in the worst\n"
    )
    print(summary(rows))
    print(f"Written to {write('whatif', rows)}")


if __name__ == "__main__":
    main()
