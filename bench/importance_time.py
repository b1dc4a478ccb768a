"""What fewer reads are in time: the real loader under each sampling, on storage with a limited bandwidth. Needs root."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from table import ROOT, Row, markdown

sys.path.insert(0, str(ROOT / "truth"))

from importance_job import SAMPLE_BYTES  # noqa: E402
from storage import SlowStorage, StorageError, forget, unavailable  # noqa: E402

WORK = ROOT / "target" / "bench" / "importance"
SAMPLES, EPOCHS, ROUNDS = 2000, 10, 2
READ_MIB_S, CACHE_SHARE = 40, 0.2
# The arguments of each; the first is the baseline.
CASES = {
    "shuffle + static pin": ["--sampling", "plain"],
    "shuffle, no cache": None,
    "reuse x2": ["--sampling", "reuse", "--uses", "2"],
    "reuse x3": ["--sampling", "reuse", "--uses", "3"],
    "importance + MIN": ["--sampling", "importance"],
}


def measured():
    """Rows of samples a second and reads; none where storage cannot be slowed here, with a warning."""
    if why := unavailable():
        print(f"\nNOT MEASURED, time on throttled storage: {why}")
        return []
    seconds, reads = {case: [] for case in CASES}, {case: [] for case in CASES}
    try:
        with SlowStorage(WORK / "disk.img", WORK / "disk", 400) as disk:
            file = WORK / "disk" / "samples.bin"
            if not file.exists():
                partial = file.with_suffix(".partial")
                partial.write_bytes(os.urandom(SAMPLES * SAMPLE_BYTES))
                partial.rename(file)
            for _ in range(ROUNDS):
                for case, words in CASES.items():
                    forget(WORK / "disk")
                    disk.limit(READ_MIB_S << 20)
                    result = run(file, words)
                    seconds[case].append(result["seconds"] / result["uses"])
                    figures = result["figures"]
                    read = figures["source_bytes"] / SAMPLE_BYTES if figures else result["uses"]
                    reads[case].append(read / result["uses"])
    except StorageError as error:
        sys.exit(f"bench-importance: {error}")
    return shown(seconds, reads)


def run(file: Path, words) -> dict:
    cache = [] if words is None else ["--cache", str(int(CACHE_SHARE * SAMPLES * SAMPLE_BYTES))]
    command = [sys.executable, ROOT / "bench" / "importance_job.py", "--file", file, "--epochs", EPOCHS, *cache, *(words or [])]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        sys.exit(f"bench-importance: a job on throttled storage gave no figures: {done.stderr.strip()[-300:]}")


def shown(seconds, reads):
    base = statistics.mean(seconds["shuffle + static pin"])
    body, rows = [], []
    for case in CASES:
        each, read = statistics.mean(seconds[case]), statistics.mean(reads[case])
        spread = max(seconds[case]) / min(seconds[case]) - 1
        body.append([case, f"{1 / each:.0f}", f"{spread:.0%}", f"{read:.3f}", f"{each / base:.2f}"])
        rows += [
            Row(case, "samples a second on throttled storage", 1 / each, "samples/s"),
            Row(case, "time on throttled storage", each / base, "of shuffle + pin"),
            Row(case, "reads on throttled storage", read, "of uses"),
        ]
    print(
        f"\nThe real loader, 4 workers, {SAMPLES} samples of {SAMPLE_BYTES >> 10} KiB from a disk of {READ_MIB_S} MiB/s, cache "
        f"{CACHE_SHARE:.0%}, {EPOCHS} epochs' worth of draws, nothing but loading; means of {ROUNDS} rounds.\n"
    )
    print(markdown(["sampling", "samples/s", "spread", "reads a use", "time beside the pin's"], body))
    return rows
