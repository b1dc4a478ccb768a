"""`make bench-fetchers`: samples a second of a cached loader with 0, 4 and 8 fetchers, beside torch's own loader.

Two workers read a file a sample from demo/slowfs (needs /dev/fuse): each read takes 5 ms, or all readers share a rate.
The ways take turns, round by round; a gain is the median over rounds of one way's rate over the rate of no fetchers in
the same round. The first epoch, in which processes start and the cache fills, is not counted. About half an hour.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from table import ROOT, Row, machine, markdown, write

WORK = ROOT / "target" / "bench" / "fetchers"
SLOWFS = ROOT / "target" / "release" / "slowfs"
SAMPLES, SAMPLE_BYTES = 4096, 16 << 10
# Half of the data set.
CACHE_BYTES = SAMPLES * SAMPLE_BYTES // 2
WORKERS, BATCH = 2, 32
TORCH, NONE = "torch", 0
WAYS = [TORCH, NONE, 4, 8]


class BenchFailed(Exception):
    pass


@dataclass
class Storage:
    name: str
    arguments: list[str]


STORAGES = [
    Storage("5 ms a read", ["--mib-per-s", "4096", "--latency-ms", "5"]),
    Storage("8 MiB/s for all", ["--mib-per-s", "8", "--latency-ms", "0"]),
]


def files():
    """The folder of the data set, made where it is not there."""
    plain = WORK / "plain"
    plain.mkdir(parents=True, exist_ok=True)
    for number in range(SAMPLES):
        path = plain / str(number)
        if not path.exists():
            path.write_bytes(number.to_bytes(8, "little") * (SAMPLE_BYTES // 8))
    return plain


@contextmanager
def mounted(storage, plain):
    mount = WORK / "slow"
    mount.mkdir(exist_ok=True)
    subprocess.run(["fusermount3", "-uzq", mount], stderr=subprocess.DEVNULL)
    server = subprocess.Popen([SLOWFS, plain, mount, *storage.arguments])
    try:
        while not os.path.ismount(mount):
            if server.poll() is not None:
                raise BenchFailed("the slow storage could not be mounted; it needs the package fuse3 and /dev/fuse")
            time.sleep(0.05)
        yield mount
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def be_job(folder, way, epochs):
    """Iterates one loader; prints its rate and what its cache tells."""
    sys.path.insert(0, str(ROOT / "target" / "python"))
    import torch

    import stallscope

    class Files(torch.utils.data.Dataset):
        def __len__(self):
            return SAMPLES

        def __getitem__(self, index):
            with open(f"{folder}/{index}", "rb") as file:
                data = file.read()
            return index, len(data)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    given = {"batch_size": BATCH, "shuffle": True, "num_workers": WORKERS, "persistent_workers": True}
    if way == TORCH:
        loader = torch.utils.data.DataLoader(Files(), **given)
    else:
        loader = stallscope.DataLoader(Files(), cache=CACHE_BYTES, fetchers=int(way), **given)
    for epoch in range(epochs + 1):
        if epoch == 1:
            began_s = time.monotonic()
        seen = [index for indices, sizes in loader if (sizes == SAMPLE_BYTES).all() for index in indices.tolist()]
        assert sorted(seen) == list(range(SAMPLES)), "an epoch has each sample once"
    taken_s = time.monotonic() - began_s
    figures = loader.cache_figures() if way != TORCH else {}
    print(json.dumps({"samples_per_s": epochs * SAMPLES / taken_s, "figures": figures}))


def taken(folder, way, epochs):
    command = [sys.executable, __file__, "--job", folder, str(way), "--epochs", str(epochs)]
    # A pool of its own, which goes with its job.
    runtime = WORK / "run"
    environment = {**os.environ, "STALLSCOPE_RUNTIME_DIR": str(runtime), "STALLSCOPE_POOL_LINGER_MS": "0"}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    if done.returncode != 0 or not done.stdout.strip():
        raise BenchFailed(f"the job with {called(way)} failed: {done.stderr.strip() or 'it printed nothing'}")
    result = json.loads(done.stdout.splitlines()[-1])
    if way not in (TORCH, NONE) and not result["figures"].get("prefetched"):
        raise BenchFailed(f"the job with {called(way)} fetched nothing ahead: {done.stderr.strip()}")
    return result["samples_per_s"]


def called(way):
    return "torch's loader" if way == TORCH else f"{way} fetchers"


def measured(storage, plain, rounds, epochs):
    """Rates by way, a round each."""
    rates = {way: [] for way in WAYS}
    with mounted(storage, plain) as folder:
        for number in range(rounds):
            # The first has the machine as the last round left it.
            for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                rates[way].append(taken(folder, way, epochs))
                print(f"{storage.name}, round {number + 1}, {called(way)}: {rates[way][-1]:.0f} samples/s", flush=True)
    for way in (TORCH, NONE):
        if len(rates[way]) != rounds or not all(rate > 0 for rate in rates[way]):
            raise BenchFailed(f"{storage.name}: there is no baseline of {called(way)}")
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="that are counted")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return be_job(*args.job, args.epochs)
    rows, body = [], []
    try:
        plain = files()
        for storage in STORAGES:
            rates = measured(storage, plain, args.rounds, args.epochs)
            for way in WAYS:
                gains = [rate / none for rate, none in zip(rates[way], rates[NONE])]
                rate, gain = median(rates[way]), median(gains)
                case = f"{storage.name}, {called(way)}"
                rows += [Row(case, "rate", rate, "samples/s"), Row(case, "of no fetchers", gain, "times")]
                body.append([case, f"{rate:.0f}", f"{gain:.2f}", f"{min(gains):.2f} to {max(gains):.2f}"])
    except BenchFailed as error:
        print(f"bench-fetchers: {error}", file=sys.stderr)
        return 1
    print(markdown(["storage and way", "samples/s", "of no fetchers", "rounds"], body))
    print(f"On {machine()}.")
    print(write("fetchers", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
