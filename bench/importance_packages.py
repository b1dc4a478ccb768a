"""What packages save and cost: the real loader on storage that takes some milliseconds a read, with and without them.

The source is demo/slowfs (needs /dev/fuse); packages are on the disk of this checkout, whose page cache has what was
just written. Requests and bytes are for each use, once the cache is full.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager

from table import ROOT, Row, machine, markdown, write

WORK = ROOT / "target" / "bench" / "importance"
SLOWFS = ROOT / "target" / "release" / "slowfs"
SAMPLES, SAMPLE_BYTES, CACHE_SHARE = 8000, 16 << 10, 0.2
LATENCY_MS, ROUNDS = 5, 2
# iCACHE's selection draws everything in its first five epochs.
EPOCHS, FROM_EPOCH = 12, 6
CASES = {
    "shuffle + static pin": ("plain", False),
    "importance + MIN": ("importance", False),
    "importance + MIN, packages": ("importance", True),
    "iCACHE's IIS": ("iis", False),
    "iCACHE's IIS, packages": ("iis", True),
    "reuse x2": ("reuse", False),
}


@contextmanager
def mounted():
    """The file of samples, on slow storage."""
    plain, mount = WORK / "plain", WORK / "slow"
    for folder in (plain, mount):
        folder.mkdir(parents=True, exist_ok=True)
    file = plain / f"{SAMPLES}.bin"
    if not file.exists():
        file.with_suffix(".partial").write_bytes(os.urandom(SAMPLES * SAMPLE_BYTES))
        file.with_suffix(".partial").rename(file)
    command = [SLOWFS, plain, mount, "--mib-per-s", "4096", "--latency-ms", str(LATENCY_MS)]
    subprocess.run(["fusermount3", "-uzq", mount], stderr=subprocess.DEVNULL)
    server = subprocess.Popen([str(part) for part in command])
    try:
        while not os.path.ismount(mount):
            if server.poll() is not None:
                sys.exit("bench-importance: the slow storage could not be mounted; it needs the package fuse3 and /dev/fuse")
            time.sleep(0.05)
        yield mount / file.name
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def run(file, sampling, packages):
    cache = int(CACHE_SHARE * SAMPLES * SAMPLE_BYTES)
    command = [sys.executable, ROOT / "bench" / "importance_job.py", "--file", file, "--epochs", EPOCHS, "--cache", cache]
    command += ["--sampling", sampling, "--sample-bytes", SAMPLE_BYTES, "--from-epoch", FROM_EPOCH]
    if packages:
        command += ["--packages", WORK / "packages"]
    # A pool of its own, which goes with its job.
    environment = {**os.environ, "STALLSCOPE_RUNTIME_DIR": str(WORK / "run"), "STALLSCOPE_POOL_LINGER_MS": "0"}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, env=environment)
    try:
        result = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        sys.exit(f"bench-importance: a job with {sampling} gave no figures: {done.stderr.strip()[-300:]}")
    figures, uses = result["figures"], result["uses"]
    figures = {**dict.fromkeys(("packaged", "package_reads", "package_read_bytes", "package_written_bytes"), 0), **figures}
    each = uses * SAMPLE_BYTES
    return {
        "hits": figures["hits"] / uses,
        "source requests": (figures["misses"] - figures["packaged"]) / uses,
        "package requests": figures["package_reads"] / uses,
        "bytes read": (figures["source_bytes"] + figures["package_read_bytes"]) / each,
        "bytes written": figures["package_written_bytes"] / each,
        "samples/s": uses / result["seconds"],
    }


def main():
    found = {case: [] for case in CASES}
    with mounted() as file:
        for _ in range(ROUNDS):
            for case, (sampling, packages) in CASES.items():
                found[case].append(run(file, sampling, packages))
                print(f"{case}: {found[case][-1]['samples/s']:.0f} samples/s", flush=True)
    columns = list(found[next(iter(CASES))][0])
    body, rows = [], []
    for case, runs in found.items():
        means = [statistics.mean(one[column] for one in runs) for column in columns]
        body.append([case, *(f"{value:.3f}" if value < 10 else f"{value:.0f}" for value in means)])
        rows += [Row(case, column, value, "samples/s" if column == "samples/s" else "a use") for column, value in zip(columns, means)]
    print(
        f"\n4 workers, {SAMPLES} samples of {SAMPLE_BYTES >> 10} KiB, {LATENCY_MS} ms a read, cache {CACHE_SHARE:.0%}, epochs {FROM_EPOCH + 1} to "
        f"{EPOCHS}, nothing but loading; means of {ROUNDS} rounds. Bytes are in samples.\n"
    )
    print(markdown(["sampling", *columns], body))
    print(f"On {machine()}.")
    print(write("importance-packages", rows))
    return 0
