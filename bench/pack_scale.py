"""`make bench-pack-scale`: what a pack of 1 and of 10 million files costs before and beside the reading of samples.

The files are of 8 bytes, as what is measured is the snapshot: opening it, the first batch of a loader, look-ups by name and by number,
listing, and the memory of each. Packs are made of names that are made up, without the files (2 GB and some minutes, once); only the
folder that a pack of a million is compared with has files, empty ones. Before each first batch the snapshot and the chunks are put out
of memory, as far as no other process has them. The folder is walked from memory, which favours it.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from table import ROOT, Row, markdown, summary, write

WORK = ROOT / "target" / "bench" / "pack-scale"
RELEASE = ROOT / "target" / "release"
PROGRAM, MAKER = RELEASE / "stallscope", RELEASE / "packscale"
MILLION = 1_000_000
BATCH, WORKERS, CLASSES = 64, 2, 1000
LOOKUPS = 100_000
# With a million files; and of each look-up in the program's own language.
MOST_FIRST_S, MOST_LOOKUP_NS, LEAST_GAIN = 1.0, 1000, 100
WAYS = {
    "files": "PackedDataset, shuffle=True",
    "lying": "PackedDataset, in chunk order",
    "chunks": "PackedDataset, Shuffle",
    "images": "PackedImageFolder, shuffle=True",
}


class BenchFailed(Exception):
    pass


def name(number):
    return f"class-{number % CLASSES:03}/picture-{number:08}.jpg"


def called(command):
    """Runs a command: its first line, how long it took, and the most memory that it had in KiB."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began_s = time.monotonic()
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=errors)
        # It knows the memory, where Popen.wait does not.
        _, status, usage = os.wait4(process.pid, 0)
        took_s = time.monotonic() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            raise BenchFailed(f"{Path(command[0]).name} {command[1]} failed: {errors.read().strip()}")
        return output.readline(), took_s, usage.ru_maxrss


def prepared(files):
    """The pack of so many files, and what making its snapshot took."""
    pack, made = WORK / f"{files}.pack", WORK / f"{files}.json"
    if not made.exists():
        shutil.rmtree(pack, ignore_errors=True)
        called([MAKER, "make", pack, files])
        _, took_s, peak_kb = called([PROGRAM, "pack", "rebuild", pack])
        made.write_text(json.dumps({"rebuild_s": took_s, "rebuild_kb": peak_kb}))
    return pack, json.loads(made.read_text())


def walked(files):
    """Seconds to find so many files in their folder, as torchvision's ImageFolder does."""
    folder, made = WORK / f"{files}.files", WORK / f"{files}.files.made"
    if not made.exists():
        shutil.rmtree(folder, ignore_errors=True)
        for number in range(files):
            path = folder / name(number)
            if number < CLASSES:
                path.parent.mkdir(parents=True)
            path.touch()
        made.touch()
    took_s = []
    for _ in range(2):
        began_s = time.monotonic()
        found = 0
        for at in sorted(entry.name for entry in os.scandir(folder)):
            for root, _, names in sorted(os.walk(folder / at, followlinks=True)):
                found += len([os.path.join(root, one) for one in sorted(names) if one.lower().endswith(".jpg")])
        took_s.append(time.monotonic() - began_s)
        assert found == files
    # The first one may have read from the disk.
    return min(took_s)


def evict(pack):
    for path in pack.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def own_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def be_job(way, pack):
    """Opens the data set and takes the first batch of a loader; prints what that took, from before the data set is opened."""
    sys.path.insert(0, str(ROOT / "target" / "python"))
    import torch

    import stallscope

    torch.manual_seed(0)
    torch.set_num_threads(1)
    stallscope.PackedDataset, stallscope.PackedImageFolder  # noqa: B018  not to be imported within the measured time
    before_kb, began_s = own_kb(), time.monotonic()
    if way == "images":
        dataset = stallscope.PackedImageFolder(pack, loader=lambda file: file.read())
    else:
        dataset = stallscope.PackedDataset(pack)
    opened_s, opened_kb = time.monotonic() - began_s, own_kb() - before_kb
    if way == "chunks":
        drawn = {"sampler": dataset.shuffled(stallscope.Shuffle(1.05, "256MiB"), BATCH, num_workers=WORKERS)}
    else:
        drawn = {"sampler": dataset.in_chunk_order()} if way == "lying" else {"shuffle": True}
    batches = iter(
        torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, collate_fn=len, **drawn)
    )
    assert next(batches) == BATCH
    outcome = {"first_s": time.monotonic() - began_s, "opened_s": opened_s, "opened_kb": opened_kb}
    outcome["first_kb"] = own_kb() - before_kb
    del batches
    if way == "files":
        outcome.update(looked_up(dataset))
    print(json.dumps(outcome))


def looked_up(dataset):
    """Nanoseconds a look-up from Python, of names and of numbers that are drawn."""
    draw = random.Random(1)
    numbers = [draw.randrange(len(dataset)) for _ in range(LOOKUPS)]
    names = [name(number) for number in numbers]
    taken = {"index_ns": [], "name_ns": []}
    # The first round has the snapshot read into memory.
    for _ in range(4):
        for kind, look_up, keys in (("index_ns", dataset.index, names), ("name_ns", dataset.name, numbers)):
            began_ns = time.perf_counter_ns()
            for key in keys:
                look_up(key)
            taken[kind].append((time.perf_counter_ns() - began_ns) / LOOKUPS)
    return {kind: median(of[1:]) for kind, of in taken.items()}


def taken(way, pack):
    evict(pack)
    output, _, _ = called([sys.executable, __file__, "--job", way, pack])
    return json.loads(output)


def measured(files, rounds, rows, body):
    """Adds the figures of a pack of so many files."""
    pack, facts = prepared(files)
    millions = f"{files / MILLION:g} million"
    is_small = files <= MILLION

    def show(what, metric, value, unit, *bar):
        rows.append(Row(f"{what}, {millions} files", metric, value, unit, *bar))
        body.append([f"{what}, {metric}", millions, f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2f} {unit}"])

    evict(pack)
    native = json.loads(called([MAKER, "measure", pack])[0])
    show("snapshot", "bytes a file beside its name", (native["snapshot_bytes"] - native["names_bytes"]) / files, "bytes")
    show("opening", "time", native["open_s"] * 1000, "ms")
    show("opening", "own memory", native["opened_own_kb"] / 1024, "MiB")
    for what, key in (("by number", "by_number_ns"), ("by name", "by_name_ns")):
        show("look-up", what, native[key], "ns", f"at most {MOST_LOOKUP_NS}", native[key] <= MOST_LOOKUP_NS)
    show("look-up of each file once", "own memory", native["own_kb"] / 1024, "MiB")
    show("look-up of each file once", "mapped memory, shared", native["mapped_kb"] / 1024, "MiB")
    show("listing in a program", "from the disk", native["first_list_s"], "s")
    show("listing in a program", "from memory", native["list_s"], "s")
    _, listed_s, listed_kb = called([PROGRAM, "pack", "ls", pack])
    show("listing", "`pack ls`", listed_s, "s")
    show("listing", "`pack ls`, memory with what is mapped", listed_kb / 1024, "MiB")
    show("`pack rebuild`", "time", facts["rebuild_s"], "s")
    show("`pack rebuild`", "memory", facts["rebuild_kb"] / 1024, "MiB")
    opened_s = native["open_s"]
    for way, words in WAYS.items():
        outcomes = [taken(way, pack) for _ in range(rounds)]
        first_s = median(one["first_s"] for one in outcomes)
        bar = (f"under {MOST_FIRST_S:g}", first_s < MOST_FIRST_S) if is_small else ()
        show(words, "first batch", first_s, "s", *bar)
        show(words, "own memory at the first batch", median(one["first_kb"] for one in outcomes) / 1024, "MiB")
        if way == "files":
            opened_s = median(one["opened_s"] for one in outcomes)
            show("PackedDataset", "opening", opened_s * 1000, "ms")
            show("PackedDataset.index", "a look-up", median(one["index_ns"] for one in outcomes), "ns")
            show("PackedDataset.name", "a look-up", median(one["name_ns"] for one in outcomes), "ns")
    if is_small:
        walk_s = walked(files)
        gain = walk_s / opened_s
        show("folder", "walk, from memory", walk_s, "s")
        show("walk of the folder to opening the pack", "times", gain, "", f"at least {LEAST_GAIN}", gain >= LEAST_GAIN)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[MILLION, 10 * MILLION])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return be_job(*args.job)
    WORK.mkdir(parents=True, exist_ok=True)
    rows, body = [], []
    try:
        for files in args.files:
            measured(files, args.rounds, rows, body)
    except (BenchFailed, OSError) as error:
        print(f"bench-pack-scale: {error}", file=sys.stderr)
        return 1
    print(markdown(["what", "files", "measured"], body))
    print(summary(rows))
    print(write("pack-scale", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
