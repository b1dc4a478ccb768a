"""`make bench-importance`: what each sampling reads from storage, and what it costs in accuracy.

A small network that really learns (bench/importance, in Rust) on three data sets, with wrong labels and without, under every
sampling as published and corrected; shuffle with a static pin is the baseline to beat. Some 20 minutes on two cores.
Reads are samples read from the backend, filling the cache included. At the end the real loader does the same on storage with a
limited bandwidth, in short form: what the reads are in time.
"""

import argparse
import gzip
import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path
from statistics import NormalDist, mean, stdev

import importance_packages
import importance_time
from table import ROOT, Row, machine, markdown, summary, write

WORK = ROOT / "target" / "bench" / "importance"
BINARY = ROOT / "target" / "release" / "importance-bench"
BASELINE = "shuffle + static pin"
# What has the digits within; they are of the UCI repository (Alpaydin and Kaynak, CC BY 4.0).
DIGITS_FROM, DIGITS = "scikit-learn==1.9.1", "sklearn/datasets/data/digits.csv.gz"
MAIN_CACHE, MAIN_EPOCHS = 20, 20
# At the accuracy that the baseline has after so many epochs.
TARGET_EPOCHS = (5, 7, 10)
MARGIN_POINTS = 0.25


def digits():
    """A file of `class,64 numbers` lines."""
    path = WORK / "digits.csv"
    if not path.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(WORK), DIGITS_FROM]
        if subprocess.run(command).returncode != 0:
            sys.exit(f"bench-importance: {DIGITS_FROM}, which has the digits within, cannot be had by pip")
        (wheel,) = WORK.glob("scikit_learn-*.whl")
        lines = gzip.decompress(zipfile.ZipFile(wheel).read(DIGITS)).decode().split()
        numbers = [line.split(",") for line in lines]
        path.write_text("".join(",".join([of[-1], *of[:-1]]) + "\n" for of in numbers))
    return path


def trainings(arguments):
    command = [BINARY, "--digits", digits(), *arguments]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as process:
        lines = [json.loads(line) for line in process.stdout]
    if process.returncode != 0:
        sys.exit(f"bench-importance: {BINARY} ended with {process.returncode}")
    return lines


class Results:
    def __init__(self, lines):
        self.by = {}
        for line in lines:
            key = (line["method"], line["cache_percent"], line["epochs"], line["data"], line["noise_percent"])
            self.by.setdefault(key, {})[line["seed"]] = line
        self.methods = list(dict.fromkeys(line["method"] for line in lines))
        self.cells = sorted({(line["data"], line["noise_percent"]) for line in lines})
        self.caches = sorted({line["cache_percent"] for line in lines})
        self.lengths = sorted({line["epochs"] for line in lines})
        if BASELINE not in self.methods:
            sys.exit(f"bench-importance: the baseline '{BASELINE}' is missing")

    def runs(self, method, cell, cache=MAIN_CACHE, epochs=MAIN_EPOCHS):
        return self.by[(method, cache, epochs, *cell)]

    def mean(self, what, method, cell, cache=MAIN_CACHE, epochs=MAIN_EPOCHS):
        return mean(run[what] for run in self.runs(method, cell, cache, epochs).values())

    def differences(self, method, cell, cache=MAIN_CACHE, epochs=MAIN_EPOCHS):
        """Accuracy above the baseline's, in points, seed by seed: both learn the same data."""
        ours, base = self.runs(method, cell, cache, epochs), self.runs(BASELINE, cell, cache, epochs)
        return [ours[seed]["accuracy"] - base[seed]["accuracy"] for seed in base]

    def pooled(self, method, cells, cache=MAIN_CACHE, epochs=MAIN_EPOCHS):
        """Mean difference over cells and its standard error."""
        by_cell = [self.differences(method, cell, cache, epochs) for cell in cells]
        error = math.sqrt(sum(stdev(of) ** 2 / len(of) for of in by_cell if len(of) > 1)) / len(by_cell)
        return mean(map(mean, by_cell)), error

    def reads(self, method, cache=MAIN_CACHE, epochs=MAIN_EPOCHS):
        """Of the baseline's with a cache of the same size."""
        ratios = [
            self.mean("reads", method, cell, cache, epochs) / self.mean("reads", BASELINE, cell, cache, epochs)
            for cell in self.cells
        ]
        return geometric(ratios)

    def equal_accuracy(self, method, target_epochs):
        """Reads at which the method, its own length chosen, learns what the baseline learns in so many epochs, of the
        baseline's; over the cells where it gets there, and how many these are."""
        ratios = []
        for cell in self.cells:
            target = self.mean("accuracy", BASELINE, cell, epochs=target_epochs)
            curve = [
                (self.mean("reads", method, cell, epochs=length), self.mean("accuracy", method, cell, epochs=length))
                for length in self.lengths
            ]
            reads = first_reach(curve, target)
            if reads is not None:
                ratios.append(reads / self.mean("reads", BASELINE, cell, epochs=target_epochs))
        return (geometric(ratios) if ratios else None), len(ratios)

    def worse_cells(self, method):
        """Cells whose accuracy is below the baseline's: one-sided at 5% over all of them (Holm)."""
        chances = []
        for cell in self.cells:
            of = self.differences(method, cell)
            error = stdev(of) / math.sqrt(len(of)) if len(of) > 1 else 0.0
            chances.append(student(mean(of) / error, len(of) - 1) if error > 0 else 1.0)
        worse = 0
        for rank, chance in enumerate(sorted(chances)):
            if chance > 0.05 / (len(chances) - rank):
                break
            worse += 1
        return worse


def first_reach(curve, target):
    """Reads, interpolated between lengths, where the accuracy first reaches `target`; None if it never does."""
    before = None
    for reads, accuracy in curve:
        if accuracy >= target:
            if before is None:
                return reads
            share = (target - before[1]) / (accuracy - before[1])
            return before[0] * (reads / before[0]) ** share
        if before is None or accuracy > before[1]:
            before = (reads, accuracy)
    return None


def geometric(values):
    return math.exp(mean(map(math.log, values)))


def student(t, freedom):
    """P(T < t) of Student's distribution, by Hill's approximation by a normal one (1970)."""
    a = freedom - 0.5
    b = 48 * a * a
    z2 = a * math.log1p(t * t / freedom)
    z = math.sqrt(z2) * (1 + (z2 + 3) / b)
    return NormalDist().cdf(math.copysign(z, t))


def tables(results, seeds):
    body, rows = [], []
    for method in results.methods:
        cells = results.cells
        gain, error = results.pooled(method, cells)
        by_noise = [
            f"{results.pooled(method, [cell for cell in cells if cell[1] == noise])[0]:+.2f}"
            for noise in sorted({cell[1] for cell in cells})
        ]
        hits = mean(results.mean("hit_ratio", method, cell) for cell in cells)
        reads = results.reads(method)
        equal = [results.equal_accuracy(method, epochs) for epochs in TARGET_EPOCHS]
        body.append([
            method, f"{hits:.3f}", f"{reads:.2f}", f"{gain:+.2f} ± {error:.2f}", f"{results.worse_cells(method)}/{len(cells)}",
            " / ".join(by_noise), " / ".join("-" if ratio is None else f"{ratio:.2f} ({of})" for ratio, of in equal),
            f"{mean(results.mean('effective_share', method, cell) for cell in cells):.2f}",
        ])
        rows += [
            Row(method, "hits, cache 20%", hits, "of uses"),
            Row(method, "reads at equal steps, cache 20%", reads, "of shuffle + pin"),
            Row(method, "accuracy above shuffle + pin", gain, "points"),
            Row(method, "its standard error", error, "points"),
        ]
        if "substitution" in method:
            given = mean(results.mean("substituted_ratio", method, cell) for cell in results.cells)
            rows.append(Row(method, "given another sample, cache 20%", given, "of uses"))
        rows += [
            Row(method, f"reads at the accuracy of {epochs} epochs", ratio, "of shuffle + pin")
            for epochs, (ratio, _) in zip(TARGET_EPOCHS, equal) if ratio is not None
        ]
    print(f"\nCache 20%, {MAIN_EPOCHS} epochs' worth of steps, {seeds} seeds, {len(results.cells)} cells "
          f"({', '.join(sorted({cell[0] for cell in results.cells}))}; wrong labels in %: "
          f"{', '.join(str(noise) for noise in sorted({cell[1] for cell in results.cells}))}). {machine()}.\n")
    print(markdown(["sampling", "hits", "reads", "accuracy, points", "cells below", "by wrong labels",
                    f"reads at equal accuracy, {'/'.join(map(str, TARGET_EPOCHS))} epochs (cells)", "effective"], body))
    body = [
        [method, *(f"{results.reads(method, cache):.2f}, {results.pooled(method, results.cells, cache)[0]:+.2f}"
                   for cache in results.caches)]
        for method in results.methods
    ]
    print("\nReads beside those of a static pin of the same size, and accuracy in points, by the size of the cache.\n")
    print(markdown(["sampling", *(f"{cache}%" for cache in results.caches)], body))
    return rows


def bars(results):
    rows = []

    def bar(case, metric, value, unit, words, holds):
        rows.append(Row(case, metric, value, unit, words, holds))

    for method in results.methods:
        if "MIN" in method and "substitution" not in method:
            ours = mean(results.mean("hit_ratio", method, cell) for cell in results.cells)
            best = mean(results.mean("min_hit_ratio", method, cell) for cell in results.cells)
            bar(method, "hits", ours / best, "of MIN's", ">= 0.98", ours >= 0.98 * best)
    bar("importance + MIN", "reads", results.reads("importance + MIN"), "of shuffle + pin", "<= 0.50",
        results.reads("importance + MIN") <= 0.5)
    for method, reads_bar, equal_bar in (("reuse x2", 0.60, 0.80), ("reuse x3", 0.40, 0.70)):
        reads = results.reads(method)
        bar(method, "reads at equal steps", reads, "of shuffle + pin", f"<= {reads_bar:.2f}", reads <= reads_bar)
        gain, error = results.pooled(method, results.cells)
        low = gain - 1.645 * error
        bar(method, "accuracy, lower bound (95%, one-sided)", low, "points", f">= -{MARGIN_POINTS}", low >= -MARGIN_POINTS)
        worse = results.worse_cells(method)
        bar(method, "cells below (Holm)", worse, "cells", "0", worse == 0)
        ratios = [results.equal_accuracy(method, epochs)[0] for epochs in TARGET_EPOCHS]
        ratio = geometric([one for one in ratios if one is not None])
        bar(method, "reads at equal accuracy", ratio, "of shuffle + pin", f"<= {equal_bar:.2f}", ratio <= equal_bar)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--from-file", type=Path, help="lines of earlier trainings instead of new ones")
    parser.add_argument("--packages", action="store_true", help="only what packages do on storage with a latency, in some ten minutes")
    options = parser.parse_args()
    if options.packages:
        return importance_packages.main()
    if options.from_file:
        lines = [json.loads(line) for line in options.from_file.read_text().splitlines()]
    else:
        lines = trainings(["--seeds", options.seeds])
        (WORK / "lines.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = Results(lines)
    rows = tables(results, len({line["seed"] for line in lines})) + bars(results)
    rows += importance_time.measured()
    write("importance", rows)
    print()
    print(summary(rows))


if __name__ == "__main__":
    sys.exit(main())
