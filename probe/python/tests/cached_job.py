"""Iterates loaders with and without a cache; prints what each gave, a JSON line a case.

usage: cached_job.py FOLDER CASE...; each case has a folder of its own under FOLDER.
"""

import json
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path

import torch
from cached_sets import FILES, SETS, Augmented, Files, KeyedFiles, Killing, Named, Parts, fill
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, Subset
from torch.utils.data.distributed import DistributedSampler

import stallscope
from stallscope.data.cache.keys import fingerprint

BATCH, EPOCHS = 4, 2


def loader(dataset, cache="8MiB", ours=True, seed=5, **more):
    torch.manual_seed(seed)
    random.seed(seed)
    make = stallscope.DataLoader if ours else DataLoader
    more.setdefault("batch_size", BATCH)
    return make(dataset, **more, **({"cache": cache} if ours and cache else {}))


def values(batch):
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in batch]


def epochs(one, count=EPOCHS):
    got = []
    for epoch in range(count):
        if isinstance(one.sampler, DistributedSampler):
            one.sampler.set_epoch(epoch)
        got.append([values(batch) for batch in one])
    return got


def ids(got):
    return [[batch[0] for batch in epoch] for epoch in got]


def messages(warned):
    return [str(one.message) for one in warned if "stallscope" in str(one.message)]


ORDERS = {
    "shuffle": lambda dataset: {"shuffle": True},
    "distributed": lambda dataset: {"sampler": DistributedSampler(dataset, num_replicas=2, rank=1, seed=2)},
}


def same(folder, order, workers, method=None, persistent=False):
    """The same loader: torch's, ours, and ours with a cache."""
    # Workers that are kept draw a seed once, others in each epoch.
    kept = {"persistent_workers": True} if persistent else {}
    more = {"num_workers": workers, **kept}
    if method:
        more["multiprocessing_context"] = method

    def got(ours, cache, **more):
        # Where torch makes samples in the training process, what they draw is training's own.
        dataset = Augmented(folder) if ours else Files(folder)
        one = loader(dataset, cache, ours, **ORDERS[order](dataset), **more)
        result = epochs(one)
        return result, torch.rand(2).tolist() + [random.random()], one

    # How many workers there are, and how they are started, changes nothing in what is drawn and made here.
    torchs, _, _ = got(False, None, num_workers=min(workers, 1), **kept)
    plain, plain_after, _ = got(True, None, num_workers=min(workers, 1), **kept)
    cached, cached_after, one = got(True, "8MiB", **more)
    return {
        "order": ids(torchs) == ids(cached), "samples": plain == cached, "epochs_differ": cached[0] != cached[1],
        "after": plain_after == cached_after, "figures": one.cache_figures(),
    }  # fmt: skip


def gone(folder, workers):
    """All of it is kept after the first epoch."""
    plain = epochs(loader(Augmented(folder), None, num_workers=workers, shuffle=True))
    one = loader(Augmented(folder), num_workers=workers, shuffle=True)
    return {"same": epochs(one) == plain, "figures": one.cache_figures()}


def repeated(folder):
    """Each sample is used three times in an epoch."""
    draws = [index for index in range(FILES) for _ in range(3)]
    random.Random(1).shuffle(draws)
    one = loader(Augmented(folder), sampler=draws, batch_size=None)
    (got,) = epochs(one, 1)
    return {"got": got, "draws": draws, "figures": one.cache_figures()}


def parts(folder, workers):
    """A data set that fetches and decodes by itself, whole and as two subsets of one pool."""
    dataset = Parts(folder)
    plain = epochs(loader(dataset, None, num_workers=workers, shuffle=True), 1)
    one = loader(dataset, num_workers=workers, shuffle=True)
    first = epochs(one, 1)
    halves = [Subset(dataset, list(range(start, FILES, 2))) for start in (0, 1)]
    subsets = [loader(half, batch_size=None, num_workers=workers) for half in halves]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        got = [epochs(subset, 1)[0] for subset in subsets]
    figures = [subset.cache_figures() for subset in subsets]
    return {"same": first == plain, "subsets": got, "messages": messages(warned), "figures": figures}


def named(folder, workers):
    """Samples that are asked for as only the data set's `__getitem__` understands."""
    drawn = [3, "07", (5, 32), -1, FILES + 2, "03", 3, -FILES]
    more = {"sampler": drawn, "batch_size": None, "num_workers": workers}
    plain = epochs(loader(Named(folder), None, **more))
    one = loader(Named(folder), **more)
    return {"plain": plain, "got": epochs(one), "figures": one.cache_figures()}


def other(folder, name, workers):
    """A data set that is not, or not quite, one of a file a sample."""
    make, more = SETS[name]
    plain = epochs(loader(make(folder), None, num_workers=workers, **more))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        one = loader(make(folder), num_workers=workers, **more)
        got = epochs(one)
    return {"same": plain == got, "messages": messages(warned), "figures": one.cache_figures()}


def failing(folder, name, cache):
    """What a loop gets from samples that cannot be made."""
    make, more = SETS[name]
    one = loader(make(folder), cache, batch_size=None, **more)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        iterator, got = iter(one), []
        while True:
            try:
                got.append(values(next(iterator)))
            except StopIteration:
                break
            except Exception as error:
                got.append([type(error).__name__, str(error), repr(error.__context__)])
    return {"got": got, "messages": messages(warned), "figures": one.cache_figures()}


def beside(folder):
    """Another thread opens the files of samples while they are made."""
    dataset = Files(folder)
    kinds, stop = set(), threading.Event()

    def look():
        while not stop.is_set():
            with open(dataset.paths[3], "rb") as file:
                kinds.add(type(file).__name__)

    thread = threading.Thread(target=look)
    one = loader(dataset)
    epochs(one, 1)
    thread.start()
    try:
        for _ in range(20):
            epochs(one, 1)
    finally:
        stop.set()
        thread.join()
    with open(dataset.paths[3], "rb") as file:
        kinds.add(type(file).__name__)
    return {"kinds": sorted(kinds), "figures": one.cache_figures()}


def fingerprints(folder):
    """Hits of loaders on data sets that are alike and not the same."""
    made = []

    def hits(dataset):
        one = loader(dataset)
        got = epochs(one, 1)
        # The pool keeps them all.
        made.append(one)
        figures = one.cache_figures()
        return [figures["hits"], figures["misses"], [size for batch in got[0] for size in batch[1]]]

    outcome = {"first": hits(Files(folder)), "again": hits(Files(folder))}
    twin = Path(folder + "-twin")
    fill(twin, size=2000)
    outcome["twin"] = hits(Files(str(twin)))
    outcome["shorter"] = hits(Files(folder, 9))
    last = Files(folder).paths[-1]
    Path(last).write_bytes(b"changed" * 300)
    outcome["changed"] = hits(Files(folder))
    return outcome


def small(folder):
    """A budget that is less than a sample, and one for some of them."""
    result = {}
    for name, cache in (("none", 900), ("some", 12_288)):
        plain = epochs(loader(Augmented(folder), None, shuffle=True))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            one = loader(Augmented(folder), cache, shuffle=True)
            got = epochs(one)
        result[name] = {"same": got == plain, "messages": messages(warned), "figures": one.cache_figures()}
    return result


def resumed(folder):
    """A position is taken up in mid-epoch by a loader with another number of workers."""
    (plain,) = epochs(loader(Augmented(folder), None, shuffle=True, num_workers=1), 1)
    one = loader(Augmented(folder), shuffle=True, num_workers=1)
    iterator = iter(one)
    got = [values(next(iterator)) for _ in range(3)]
    state = one.state_dict()
    other = loader(Augmented(folder), shuffle=True, num_workers=2, seed=99)
    other.load_state_dict(state)
    got += epochs(other, 1)[0]
    return {"same": got == plain, "figures": other.cache_figures()}


def alone(folder):
    """A data set without samples of its own."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        one = loader(SETS["alone"][0](folder))
        got = epochs(one)
    return {"sizes": sum((batch[0] for batch in got[1]), []), "messages": messages(warned), "figures": one.cache_figures()}


def rewritten(folder, workers):
    """Files are written anew, as long as they were, in a running job and between two; of those at which no fingerprint looks."""

    def lasts(one):
        (got,) = epochs(one, 1)
        return {index: last for batch in got for index, last in zip(batch[0], batch[2])}

    def write(index, byte):
        path = Files(folder).paths[index]
        Path(path).write_bytes(bytes([byte]) * os.stat(path).st_size)

    # However long this machine takes to look at a file.
    fingerprint._LOOK_NS = float("inf")
    one = loader(Files(folder), num_workers=workers)
    outcome = [lasts(one)]
    write(9, 99)
    outcome += [lasts(one), lasts(one)]
    figures = one.cache_figures()
    write(11, 111)
    # The first loader is there still, and so is the pool.
    other = loader(Files(folder), num_workers=workers)
    outcome += [lasts(other), lasts(other)]
    return {"outcome": [[epoch[9], epoch[11], epoch[12]] for epoch in outcome], "figures": [figures, other.cache_figures()]}


def keys(folder):
    """A sampler of keys that are no numbers, on a data set that knows both."""
    dataset = KeyedFiles(folder)
    order = [f"key {index}" if index % 3 else index for index in range(FILES)]
    plain = epochs(loader(dataset, None, sampler=order))
    one = loader(dataset, sampler=order)
    return {"same": epochs(one) == plain, "figures": one.cache_figures()}


def grown(folder):
    """A data set that grows between two epochs."""
    one = loader(Files(folder, 9), sampler=SequentialSampler(range(9)))
    first = epochs(one, 1)
    one.dataset.paths = Files(folder).paths
    one.sampler.data_source = range(FILES)
    return {"got": ids(first + epochs(one, 2)), "figures": one.cache_figures()}


def pools():
    """The processes that keep samples for this job's runtime folder."""
    mine, found = os.environ["STALLSCOPE_RUNTIME_DIR"].encode(), []
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes() if process.name.isdigit() else b""
        except OSError:
            continue
        if b"_pool.py" in command and mine in command:
            found.append(int(process.name))
    return found


def pool_killed(folder, workers):
    """The pool's process is killed in the midst of the first epoch, when it has some of the samples."""
    plain = epochs(loader(Augmented(folder), None, num_workers=workers, shuffle=True), 3)
    one = loader(Augmented(folder), num_workers=workers, shuffle=True)
    got, killed = [[]], 0
    for number, batch in enumerate(one):
        got[0].append(values(batch))
        if number == 1:
            for pid in pools():
                os.kill(pid, signal.SIGKILL)
                killed += 1
    got += epochs(one, 2)
    return {"same": got == plain, "killed": killed, "figures": one.cache_figures()}


def worker_killed(folder, method):
    """A worker is killed while it reads what others wait for."""
    plain = epochs(loader(Parts(folder), None), 1)
    one = loader(Killing(folder), num_workers=2, multiprocessing_context=method)
    torch.manual_seed(5)
    try:
        epochs(one, 1)
        error = ""
    except (RuntimeError, OSError, EOFError) as raised:
        error = str(raised)
    # As if the epoch that failed had never been.
    one.begin_with_epoch(0)
    torch.manual_seed(5)
    return {"error": error, "same": epochs(one, 1) == plain, "figures": one.cache_figures()}


def resized(folder):
    """The budget changes before every sample."""
    plain = epochs(loader(Augmented(folder), None, shuffle=True, batch_size=1, num_workers=2), 3)
    one = loader(Augmented(folder), shuffle=True, batch_size=1, num_workers=2)
    got, changed = [], 0
    for epoch in range(3):
        got.append([])
        for number, batch in enumerate(one):
            got[-1].append(values(batch))
            changed += one._store.resize((1 + (number * 7 + epoch) % 11) * 4096)
    one._store.resize(1 << 20)
    return {"same": got == plain, "changed": changed, "figures": one.cache_figures()}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(9))


def stream(folder):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        one = loader(Stream())
        got = [batch.tolist() for _ in range(2) for batch in one]
    return {"got": got, "messages": messages(warned)}


CASES = {
    "same": same, "gone": gone, "repeated": repeated, "parts": parts, "named": named, "other": other, "failing": failing,
    "beside": beside, "rewritten": rewritten, "fingerprints": fingerprints, "small": small, "keys": keys, "resumed": resumed, "alone": alone, "grown": grown, "stream": stream,
    "pool_killed": pool_killed, "worker_killed": worker_killed, "resized": resized,
}  # fmt: skip


def main():
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    for number, case in enumerate(sys.argv[2:]):
        name, *arguments = json.loads(case)
        folder = root / str(number)
        fill(folder)
        print(json.dumps(CASES[name](str(folder), *arguments)), flush=True)


if __name__ == "__main__":
    main()
