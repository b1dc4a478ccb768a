"""Iterates loaders whose samples of low importance come in packages; prints what they gave, a JSON line a case.

usage: packages_job.py CASE...; a case is a JSON list of its name and its arguments.
"""

import contextlib
import gc
import json
import os
import shutil
import signal
import sys
import time
import warnings
from hashlib import blake2b
from pathlib import Path

import torch
from cached_job import pools
from torch.utils.data import Dataset

import stallscope

SAMPLES, BATCH, CLASSES, SAMPLE_BYTES = 1500, 8, 5, 2000
CACHE_BYTES = SAMPLES * SAMPLE_BYTES // 5
os.makedirs(os.environ["STALLSCOPE_RUNTIME_DIR"], mode=0o700, exist_ok=True)
FOLDER = os.path.join(os.environ["STALLSCOPE_RUNTIME_DIR"], "..", "packages")


class Parts(Dataset):
    """Samples that say which they are; and a file that grows by a byte with each fetch."""

    def __init__(self, counts):
        self.counts = counts
        self.targets = [index % CLASSES for index in range(SAMPLES)]

    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        fd = os.open(self.counts, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, b".")
        os.close(fd)
        return index.to_bytes(4, "little") * (SAMPLE_BYTES // 4)

    def decode(self, data):
        assert len(data) == SAMPLE_BYTES and data[:4] * (SAMPLE_BYTES // 4) == data, "the bytes of a sample"
        return torch.tensor([float(int.from_bytes(data[:4], "little")), torch.rand(()).item()])


class Files(Dataset):
    """A file a sample."""

    def __init__(self, folder):
        os.makedirs(folder)
        self.paths = [os.path.join(folder, str(index)) for index in range(SAMPLES)]
        self.targets = [index % CLASSES for index in range(SAMPLES)]
        for index, path in enumerate(self.paths):
            Path(path).write_bytes(index.to_bytes(4, "little") * (SAMPLE_BYTES // 4))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return torch.tensor([float(int.from_bytes(file.read()[:4], "little")), torch.rand(()).item()])


LOSSES = torch.empty(SAMPLES).log_normal_(0.0, 1.0, generator=torch.Generator().manual_seed(3))


def loader(sampling, packages, workers=0, start=None, dataset=None, limit=None, options=None, **more):
    torch.manual_seed(11)
    counts = os.path.join(os.environ["STALLSCOPE_RUNTIME_DIR"], f"counts-{time.monotonic_ns()}")
    if workers and start:
        more["multiprocessing_context"] = start
    if packages:
        more.update(packages=FOLDER if packages is True else packages, packages_limit=limit)
    return stallscope.DataLoader(
        dataset or Parts(counts), batch_size=BATCH, shuffle=True, num_workers=workers, cache=CACHE_BYTES, sampling=sampling,
        sampling_options=options, **more,
    )  # fmt: skip


def epoch(made, within=None):
    """What it gave, as digests; `within()` is called in the midst of it."""
    ids, rest, batches = [], blake2b(digest_size=16), len(made)
    for number, (batch, its, weights) in enumerate(made.weighted()):
        if number == batches // 2 and within is not None:
            within()
        assert (batch[:, 0] == its).all(), "each sample is the one that was drawn"
        made.update(its, LOSSES[its])
        ids += its.tolist()
        rest.update(batch.numpy().tobytes() + weights.numpy().tobytes())
    return {"ids": ids, "rest": rest.hexdigest()}


def there(folder=FOLDER):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")) if os.path.isdir(folder) else []


def fetches(made):
    return os.path.getsize(made.dataset.counts)


def case_gives(sampling, packages, workers=0, start=None, epochs=7, **more):
    made = loader(sampling, packages, workers, start, **more)
    outcome = {"epochs": [], "fetches": [], "uses": 0}
    for _ in range(epochs):
        gave = epoch(made)
        outcome["epochs"].append(gave)
        outcome["uses"] += len(gave["ids"])
        outcome["fetches"].append(fetches(made))
    outcome["figures"] = made.cache_figures()
    outcome["within"] = there()
    del made
    gc.collect()
    outcome["after"] = there()
    return outcome


def case_files(sampling, workers=0):
    folder = os.path.join(os.environ["STALLSCOPE_RUNTIME_DIR"], "files")
    dataset = Files(folder)
    made = loader(sampling, True, workers, dataset=dataset)
    epoch(made)
    epoch(made)
    for path in dataset.paths:
        # Of the same length, and another file: what is in packages is of the one before.
        index = int.from_bytes(Path(path).read_bytes()[:4], "little")
        Path(path + ".new").write_bytes(index.to_bytes(4, "little") * (SAMPLE_BYTES // 4 - 1) + b"new.")
        os.rename(path + ".new", path)
    before = made.cache_figures()
    epoch(made)
    return {"before": before, "after": made.cache_figures()}


def flip():
    for path in Path(FOLDER).rglob("*.package"):
        # A worker may take it meanwhile, or have just made it.
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            if data := bytearray(file.read()):
                data[len(data) // 2] ^= 1
                file.seek(0)
                file.write(data)


def cut():
    for path in Path(FOLDER).rglob("*.package"):
        with contextlib.suppress(FileNotFoundError):
            os.truncate(path, path.stat().st_size * 2 // 3)


def remove():
    # A worker may make another package in it meanwhile.
    while os.path.exists(FOLDER):
        shutil.rmtree(FOLDER, ignore_errors=True)


def kill_pool():
    for pid in pools():
        os.kill(pid, signal.SIGKILL)


DOINGS = {"flip": flip, "cut": cut, "remove": remove, "kill_pool": kill_pool}


def case_hurt(doing, workers=0, epochs=4):
    made = loader("importance", True, workers)
    # Forked workers would write theirs to a list of their own.
    with warnings.catch_warnings(record=workers == 0) as seen:
        warnings.simplefilter("always")
        gave = [epoch(made), epoch(made), *[epoch(made, DOINGS[doing]) for _ in range(epochs - 2)]]
    figures = made.cache_figures()
    return {"epochs": gave, "figures": figures, "warnings": [str(one.message) for one in seen or []]}


def case_full(folder):
    """`folder` is on a disk of a few packages."""
    made = loader("importance", folder, limit="1GiB")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gave = [epoch(made) for _ in range(4)]
    return {"epochs": gave, "figures": made.cache_figures(), "warnings": [str(one.message) for one in seen]}


def case_killed():
    """A job is killed in mid-epoch, and another one begins."""
    child = os.fork()
    if child == 0:
        made = loader("importance", True)
        for _ in range(3):
            epoch(made, lambda: None)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    left = there()
    made = loader("iis", True)
    epoch(made)
    within = there()
    del made
    gc.collect()
    return {"left": left, "within": within, "after": there()}


def case_refused():
    words = []
    tries = [
        {"sampling": "plain"}, {"sampling": "reuse"}, {"sampling": "shade"}, {"cache": None}, {"fetchers": 2}, {"packages": 7},
        {"packages": None}, {"packages_limit": "much"}, {"packages_limit": 0},
    ]  # fmt: skip
    for change in tries:
        given = {"sampling": "importance", "cache": "1MiB", "packages": FOLDER, "packages_limit": "1GiB", "shuffle": True, **change}
        try:
            stallscope.DataLoader(Parts("none"), **given)
            words.append(None)
        except (TypeError, ValueError) as error:
            words.append(f"{type(error).__name__}: {error}")
    return words


def case_others_may_write():
    os.makedirs(FOLDER)
    os.chmod(FOLDER, 0o777)
    made = loader("importance", True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gave = [epoch(made) for _ in range(3)]
    shutil.rmtree(FOLDER)
    return {"epochs": gave, "figures": made.cache_figures(), "warnings": [str(one.message) for one in seen]}


def main():
    for text in sys.argv[1:]:
        name, *arguments = json.loads(text)
        more = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        print(json.dumps(globals()[f"case_{name}"](*arguments, **more)), flush=True)


if __name__ == "__main__":
    main()
