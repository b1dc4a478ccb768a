"""`make bench-pack`: samples a second of a loader from a folder of files and from its pack, cold, on slow storage.

20,000 files of 15 KB (log-normal) on ext4 whose device gives 1,000 reads and 100 MiB a second. Before each run it is mounted anew, so
that nothing of it is in memory. The ways take turns, round by round; a gain is the median over rounds of one way's rate over that of the
files in the same round. Samples are bytes, so that only reading is measured. By `run --pack` the job is the very one that reads files. Needs root and cgroups; about a quarter of an hour.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from statistics import median

from table import ROOT, Row, machine, markdown, summary, write

sys.path.insert(0, str(ROOT / "truth"))
from storage import SlowStorage, StorageError  # noqa: E402

WORK = ROOT / "target" / "bench" / "pack"
PROGRAM = ROOT / "target" / "release" / "stallscope"
FILES, MEAN_BYTES, SIGMA, CLASSES = 20_000, 15_000, 0.6, 100
READS_S, BYTES_S = 1000, 100 << 20
BATCH = 64
# About the ratio of the raw reads.
LEAST_GAIN = 9.5
# "chunks": stallscope.Shuffle on the pack. Memory for chunks, a tenth of the data set.
WAYS = {
    "files": "files, shuffled",
    "shown": "files, shuffled, by `run --pack`",
    "pack": "pack, shuffled",
    "lying": "pack, in chunk order",
    "chunks": "pack, Shuffle",
}
EFFECT, MEMORY = 1.05, "32MiB"


class BenchFailed(Exception):
    pass


def fill(folder):
    """The folder of the data set; sizes and bytes are the same on every machine."""
    draw = random.Random(1)
    for number in range(FILES):
        size = round(draw.lognormvariate(0, SIGMA) * MEAN_BYTES / 2.718281828 ** (SIGMA**2 / 2))
        path = folder / f"{number % CLASSES:03}" / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(size))


def prepared(storage):
    """The storage with files and pack; how long packing took, and how many bytes there are."""
    made = WORK / "made.json"
    if made.exists() and storage.image.exists():
        return json.loads(made.read_text())
    storage.image.unlink(missing_ok=True)
    with storage:
        fill(storage.mount / "files")
    with storage:
        storage.limit(BYTES_S, READS_S)
        began_s = time.monotonic()
        command = [PROGRAM, "pack", storage.mount / "files", "-o", storage.mount / "pack"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchFailed(f"the files could not be packed: {done.stderr.strip()}")
        facts = {"pack_s": time.monotonic() - began_s}
    made.write_text(json.dumps(facts))
    return facts


def be_job(way, folder, workers):
    """Reads an epoch; prints the time until the first batch and until the last one, from before the data set is opened."""
    sys.path.insert(0, str(ROOT / "target" / "python"))
    import torch

    import stallscope

    class Files(torch.utils.data.Dataset):
        def __init__(self):
            # As torchvision's folders list theirs.
            self.paths = [
                os.path.join(at, name) for at, _, names in sorted(os.walk(f"{folder}/files")) for name in sorted(names)
            ]

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            with open(self.paths[index], "rb") as file:
                return file.read()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    stallscope.PackedDataset  # noqa: B018  not to be imported within the measured time
    began_s = time.monotonic()
    dataset = Files() if way == "files" else stallscope.PackedDataset(f"{folder}/pack")
    if way == "chunks":
        drawn = {"sampler": dataset.shuffled(stallscope.Shuffle(EFFECT, MEMORY), BATCH, num_workers=workers)}
    else:
        drawn = {"sampler": dataset.in_chunk_order()} if way == "lying" else {"shuffle": True}
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=sizes, **drawn)
    first_s, samples = 0.0, 0
    for batch in loader:
        first_s = first_s or time.monotonic() - began_s
        samples += len(batch)
    assert samples == FILES, "an epoch has each sample once"
    outcome = {"first_s": first_s, "epoch_s": time.monotonic() - began_s}
    if way == "chunks":
        sampler = drawn["sampler"]
        outcome.update(chunks=sampler.chunks, predicted=sampler.predicted, measured=sampler.measured)
    print(json.dumps(outcome))


def sizes(batch):
    return [len(data) for data in batch]


def taken(storage, way, workers):
    with storage:
        storage.limit(BYTES_S, READS_S)
        command = [sys.executable, __file__, "--job", way, storage.mount, str(workers)]
        if way == "shown":
            # The very job that reads the files, which the pack hides from it.
            command[3] = "files"
            recording = WORK / "shown.stall"
            recording.unlink(missing_ok=True)
            at = f"{storage.mount / 'pack'}={storage.mount / 'files'}"
            quiet = ["--quiet", "--no-shim", "--no-kernel", "-o", recording]
            command = [PROGRAM, "run", *quiet, "--pack", at, "--", *command]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0 or not done.stdout.strip():
        raise BenchFailed(f"the job with {WAYS[way]} failed: {done.stderr.strip() or 'it printed nothing'}")
    return json.loads(done.stdout.splitlines()[-1])


def measured(storage, workers, rounds):
    """Outcomes by way, a round each."""
    outcomes = {way: [] for way in WAYS}
    names = list(WAYS)
    for number in range(rounds):
        # The first has the machine as the last round left it.
        for way in names[number % len(names) :] + names[: number % len(names)]:
            outcomes[way].append(taken(storage, way, workers))
            rate = FILES / outcomes[way][-1]["epoch_s"]
            print(f"{workers} workers, round {number + 1}, {WAYS[way]}: {rate:.0f} samples/s", flush=True)
    return outcomes


def barred(way, gain):
    """The bar of a row, and whether it holds; of the ways in which storage reads on alone."""
    return (f"at least {LEAST_GAIN}", gain >= LEAST_GAIN) if way in ("lying", "chunks") else ()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        way, folder, workers = args.job
        return be_job(way, folder, int(workers))
    WORK.mkdir(parents=True, exist_ok=True)
    storage = SlowStorage(WORK / "storage.img", WORK / "storage", size_mb=2048)
    rows, body = [], []
    try:
        facts = prepared(storage)
        rows.append(Row("packing", "time", facts["pack_s"], "s"))
        for workers in args.workers:
            outcomes = measured(storage, workers, args.rounds)
            for way, called in WAYS.items():
                own, files = outcomes[way], outcomes["files"]
                gains = [other["epoch_s"] / one["epoch_s"] for one, other in zip(own, files)]
                rate, first_s = FILES / median(one["epoch_s"] for one in own), median(one["first_s"] for one in own)
                case = f"{called}, {workers} worker{'s' if workers > 1 else ''}"
                rows += [
                    Row(case, "rate", rate, "samples/s"),
                    Row(case, "of files", median(gains), "times", *barred(way, median(gains))),
                    Row(case, "first batch", first_s, "s"),
                ]
                spread = f"{min(gains):.2f} to {max(gains):.2f}"
                if way == "chunks":
                    effect = max(own[0]["predicted"], median(one["measured"] for one in own))
                    rows.append(Row(case, "design effect", effect, "", f"at most {EFFECT}", effect <= EFFECT))
                body.append([case, f"{rate:.0f}", f"{median(gains):.2f}", spread, f"{first_s:.2f} s"])
    except (BenchFailed, StorageError, OSError) as error:
        print(f"bench-pack: {error}", file=sys.stderr)
        return 1
    print(markdown(["way", "samples/s", "of files", "rounds", "first batch"], body))
    print(f"Packing took {facts['pack_s']:.0f} s on the same storage. On {machine()}.")
    print(summary(rows))
    print(write("pack", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
