"""`make bench-pack`: samples a second of a loader from a folder of files and from its pack, cold, on slow storage.

20,000 files of 15 KB (log-normal) on ext4 whose device gives 1,000 reads and 100 MiB a second. Before each run it is mounted anew, so
that nothing of it is in memory. The ways take turns, round by round; a gain is the median over rounds of one way's rate over that of the
files in the same round. Samples are bytes, so that only reading is measured. By `run --pack` the job is the very one that reads files. WebDataset, LitData, MosaicML
Streaming and FFCV read their own formats, written in a shuffled order as a pack is (bench/pack_peers.py); one that cannot be had is named, and it fails: `--without NAME` goes on without it. How
well an order is mixed is its design effect by class, over whole batches. Needs root and cgroups; about half an hour.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pack_peers
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
# Reads and bytes a second that the device gives, and what is read there: how the gain depends on both.
CURVE = [(250, 25 << 20), (250, 100 << 20), (1000, 25 << 20), (1000, 100 << 20), (4000, 100 << 20), (4000, 400 << 20)]
OF_CURVE, CURVE_WORKERS = ("files", "pack", "chunks"), 2
# "chunks": stallscope.Shuffle on the pack. Memory for chunks, a tenth of the data set.
WAYS = {
    "files": "files, shuffled",
    "shown": "files, shuffled, by `run --pack`",
    "pack": "pack, shuffled",
    "lying": "pack, in chunk order",
    "chunks": "pack, Shuffle",
    **pack_peers.WAYS,
}
EFFECT, MEMORY, MEMORY_BYTES = 1.05, "32MiB", 32 << 20


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


def prepared(storage, peers):
    """The storage with files, pack and others' shards; how long each took to write, by way."""
    made = WORK / "made.json"
    facts = json.loads(made.read_text()) if made.exists() and storage.image.exists() else None
    if facts is None:
        storage.image.unlink(missing_ok=True)
        with storage:
            fill(storage.mount / "files")
        facts = {}
    for way in ("pack", *peers):
        if way in facts:
            continue
        with storage:
            shutil.rmtree(storage.mount / way, ignore_errors=True)
            storage.limit(BYTES_S, READS_S)
            facts[way] = converted(way, storage.mount)
        made.write_text(json.dumps(facts))
    return facts


def converted(way, folder):
    """Writes what a way reads; how long that took, s. Raises BenchFailed, PeerMissing."""
    if way != "pack":
        return pack_peers.convert(way, folder)
    began_s = time.monotonic()
    done = subprocess.run([PROGRAM, "pack", folder / "files", "-o", folder / "pack"], capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchFailed(f"the files could not be packed: {done.stderr.strip()}")
    return time.monotonic() - began_s


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
    if way in pack_peers.WAYS:
        return be_peer(way, Path(folder), workers)
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


def be_peer(way, folder, workers):
    """The same with shards of another's."""
    pack_peers.imported(way)
    began_s = time.monotonic()
    loader = pack_peers.loader(way, folder, BATCH, workers, MEMORY_BYTES // MEAN_BYTES, sizes_and_classes)
    first_s, classes = 0.0, []
    for _, of in loader:
        first_s = first_s or time.monotonic() - began_s
        classes.append(of)
    seen = sum(map(len, classes))
    outcome = {"first_s": first_s, "epoch_s": time.monotonic() - began_s, "seen": seen, "measured": design_effect(classes)}
    print(json.dumps(outcome), flush=True)
    # One of them has threads that the interpreter waits for.
    os._exit(0)


def design_effect(batches):
    """Of whole batches of classes: the variance of a class's count in a batch, by what it is where each sample is drawn by itself, over all classes."""
    whole = [batch for batch in batches if len(batch) == BATCH]
    share = 1 / CLASSES
    expected = BATCH * share
    squares = sum((batch.count(number) - expected) ** 2 for batch in whole for number in range(CLASSES))
    return squares / len(whole) / (CLASSES * expected * (1 - share))


def sizes(batch):
    return [len(data) for data in batch]


def sizes_and_classes(batch):
    return [len(data) for data, _ in batch], [int(label) for _, label in batch]


def taken(storage, way, workers, reads_s=READS_S, bytes_s=BYTES_S):
    with storage:
        storage.limit(bytes_s, reads_s)
        python = pack_peers.python(way) if way in pack_peers.WAYS else sys.executable
        command = [python, __file__, "--job", way, storage.mount, str(workers)]
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


def measured(storage, names, workers, rounds):
    """Outcomes by way, a round each."""
    outcomes = {way: [] for way in names}
    for number in range(rounds):
        # The first has the machine as the last round left it.
        for way in names[number % len(names) :] + names[: number % len(names)]:
            outcomes[way].append(taken(storage, way, workers))
            rate = FILES / outcomes[way][-1]["epoch_s"]
            print(f"{workers} workers, round {number + 1}, {WAYS[way]}: {rate:.0f} samples/s", flush=True)
    return outcomes


def curve(storage):
    """Rows and lines of a table, a point each, of one epoch of each way."""
    rows, body = [], []
    for reads_s, bytes_s in CURVE:
        seconds = {way: taken(storage, way, CURVE_WORKERS, reads_s, bytes_s)["epoch_s"] for way in OF_CURVE}
        case = f"{reads_s} reads/s, {bytes_s >> 20} MiB/s"
        gains = [seconds["files"] / seconds[way] for way in OF_CURVE]
        rows += [Row(case, f"of files, {WAYS[way]}", gain, "times") for way, gain in zip(OF_CURVE, gains)]
        body.append([case, f"{FILES / seconds['files']:.0f}", *(f"{gain:.2f}" for gain in gains[1:])])
        print(f"{case}: {', '.join(f'{WAYS[way]} {FILES / seconds[way]:.0f}' for way in OF_CURVE)} samples/s", flush=True)
    return rows, body


def barred(way, gain):
    """The bar of a row, and whether it holds; of the ways in which storage reads on alone."""
    return (f"at least {LEAST_GAIN}", gain >= LEAST_GAIN) if way in ("lying", "chunks") else ()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--without", action="append", default=[], choices=sorted(pack_peers.WAYS))
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        way, folder, workers = args.job
        return be_job(way, folder, int(workers))
    WORK.mkdir(parents=True, exist_ok=True)
    storage = SlowStorage(WORK / "storage.img", WORK / "storage", size_mb=2048)
    rows, body = [], []
    try:
        names = [way for way in WAYS if way not in args.without]
        peers = [way for way in names if way in pack_peers.WAYS]
        facts = prepared(storage, peers)
        rows += [Row(WAYS[way] if way in peers else "packing", "time", facts[way], "s") for way in ("pack", *peers)]
        for workers in args.workers:
            outcomes = measured(storage, names, workers, args.rounds)
            for way in names:
                called = WAYS[way]
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
                mixed = [one["measured"] for one in own if "measured" in one]
                line = [case, f"{rate:.0f}", f"{median(gains):.2f}", spread, f"{first_s:.2f} s"]
                body.append([*line, f"{median(mixed):.2f}" if mixed else "", f"{facts[way]:.0f} s" if way in facts else ""])
            if peers:
                # In the same round.
                times = [
                    min(outcomes[way][at]["epoch_s"] for way in peers) / one["epoch_s"]
                    for at, one in enumerate(outcomes["chunks"])
                ]
                case = f"{WAYS['chunks']}, {workers} worker{'s' if workers > 1 else ''}"
                rows.append(Row(case, "of the fastest other", median(times), "times", "at least 1", median(times) >= 1))
        points, lines = curve(storage)
    except (BenchFailed, pack_peers.PeerMissing, StorageError, OSError) as error:
        print(f"bench-pack: {error}", file=sys.stderr)
        return 1
    print(markdown(["way", "samples/s", "of files", "rounds", "first batch", "design effect", "written in"], body))
    print(f"Written on the same storage. On {machine()}.\n")
    header = ["the device gives", "files, samples/s", *(f"{WAYS[way]}, of files" for way in OF_CURVE[1:])]
    print(markdown(header, lines))
    print(f"{CURVE_WORKERS} workers, one epoch each.")
    rows += points
    print(summary(rows))
    print(write("pack", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
