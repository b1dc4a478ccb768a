"""Iterates loaders that may give other samples than were drawn; prints what they gave, a JSON line a case.

usage: substitution_job.py CASE...; a case is a JSON list of its name and its arguments.
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
from cached_job import pools
from torch.utils.data import Dataset, Subset

import stallscope
from stallscope.data.seeding.draws import drawn

SAMPLES, BATCH, CLASSES = 1000, 8, 5


class Parts(Dataset):
    """Samples that say which they are."""

    def __init__(self, samples=SAMPLES):
        self.samples = samples
        self.targets = [index % CLASSES for index in range(samples)]

    def __len__(self):
        return self.samples

    def fetch(self, index):
        return index.to_bytes(4, "little") * 250

    def decode(self, data):
        return torch.tensor([float(int.from_bytes(data[:4], "little")), torch.rand(()).item()])


class Files(Dataset):
    """A file a sample."""

    def __init__(self, folder, samples):
        self.paths = [os.path.join(folder, str(index)) for index in range(samples)]
        self.targets = [index % CLASSES for index in range(samples)]
        for index, path in enumerate(self.paths):
            Path(path).write_bytes(index.to_bytes(4, "little") * 250)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return torch.tensor([float(int.from_bytes(file.read()[:4], "little")), torch.rand(()).item()])


def loader(sampling, share, workers=0, dataset=None, seed=5, **more):
    torch.manual_seed(seed)
    random.seed(seed)
    more.setdefault("cache", "200KB")
    more.setdefault("batch_size", BATCH)
    options = {} if share is None else {"sampling_options": {"substitute": share}}
    dataset = Parts() if dataset is None else dataset
    return stallscope.DataLoader(dataset, num_workers=workers, sampling=sampling, **options, **more)


def batches(one, tells=True, after=None):
    """An epoch, or what is left of one: of each batch what was drawn, what was given, weights, and whether the samples
    are those that it says."""
    weighted = one.weighted()
    handing = weighted.loader._handing()
    weighted.loader._handing = lambda: handing
    got = []
    try:
        for batch, ids, weights in weighted:
            values = batch.reshape(len(ids), -1)[:, 0].long().tolist()
            index = handing.current.index
            uses = index if isinstance(index, list) else [index]
            offset = one.dataset.indices[0] if isinstance(one.dataset, Subset) else 0
            true = [value - offset for value in values] == ids.tolist() == [int(use) for use in uses]
            got.append([[int(drawn(use)) for use in uses], ids.tolist(), weights.tolist(), true])
            if tells:
                one.update(ids, ((ids * 7) % 13).float() ** 2)
            if after is not None and after(len(got)):
                break
    finally:
        del weighted.loader._handing
    return got


def judged(epochs, share, start=0):
    """What the rules say of these epochs. `start`: draws of the first before it began here."""
    most, wrong, given, true = 0.0, [], 0, True
    for epoch in epochs:
        used, draws, others = set(), 0, 0
        for drawn_ids, ids, _, is_true in epoch:
            true = true and is_true
            for was, index in zip(drawn_ids, ids):
                draws += 1
                if was == index:
                    continue
                others += 1
                if was % CLASSES != index % CLASSES or index in used or index in drawn_ids:
                    wrong.append([was, index])
                used.add(index)
            used |= set(ids)
            most = max(most, others - share * draws)
        given += others
    return {"over": most, "wrong": wrong, "given": given, "true": true}


def run(sampling, share, workers, epochs=6, more=None):
    one = loader(sampling, share, workers, **(more or {}))
    got = [batches(one) for _ in range(epochs)]
    draws = sum(len(ids) for epoch in got for _, ids, _, _ in epoch)
    return {**judged(got, share), "draws": draws, "figures": one.cache_figures()}


def off(sampling, workers):
    """No option given, a share of 0, and what is drawn where others may be given, as long as nothing is learned."""
    got, loaders, epochs = [], [], []
    for share in (None, 0, 0.0):
        one = loader(sampling, share, workers)
        got.append([batches(one) for _ in range(2)])
    for share in (None, 0.3):
        loaders.append(loader(sampling, share, workers))
        epochs.append([batches(loaders[-1], tells=False) for _ in range(3)])
    planned = [[[ids, weights] for epoch in some for ids, _, weights, _ in epoch] for some in epochs]
    return {
        "same": got[0] == got[1] == got[2],
        "own": all(was == ids for epoch in epochs[0] for was, ids, _, _ in epoch),
        "planned": planned[0] == planned[1],
        "given": judged(epochs[1], 0.3)["given"],
        "reads": [one.cache_figures()["misses"] for one in loaders],
    }


def subset():
    """Samples of a subset have other numbers in the pool."""
    whole = Parts(1500)
    half = Subset(whole, list(range(500, 1500)))
    one = loader("importance", 0.2, dataset=half)
    got = [batches(one) for _ in range(5)]
    return judged(got, 0.2)


def files(folder):
    one = loader("importance", 0.2, 2, Files(folder, 300), cache="80KB")
    got = [batches(one) for _ in range(5)]
    return {**judged(got, 0.2), "figures": one.cache_figures()}


def killed(sampling, workers):
    """The pool's process is killed in mid-epoch."""
    one = loader(sampling, 0.2, workers)
    got, gone = [batches(one) for _ in range(3)], []

    def kill(count):
        if count == 20:
            for pid in pools():
                os.kill(pid, signal.SIGKILL)
                gone.append(pid)
            while any(lives(pid) for pid in gone):
                time.sleep(0.001)
        return False

    got.append(batches(one, after=kill))
    got += [batches(one) for _ in range(2)]
    lengths = [sum(len(ids) for _, ids, _, _ in epoch) for epoch in got]
    # Behind those that the workers heard of before.
    behind = judged([got[3][20 + 2 * workers + 1 :]], 0.2)["given"]
    return {**judged(got, 0.2), "killed": len(gone), "lengths": lengths, "behind": behind}


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def resumed(workers, then):
    """Stopped early in the third epoch, and taken up by another loader."""
    whole = loader("importance", 0.3, workers)
    planned = [batches(whole, tells=False) for _ in range(4)]
    one = loader("importance", 0.3, workers)
    got = [batches(one, tells=False) for _ in range(2)]
    states = []

    def stop(count):
        if count == 10:
            states.append(one.state_dict())
        return count == 10

    third = batches(one, tells=False, after=stop)
    other = loader("importance", 0.3, then, seed=99)
    other.load_state_dict(states[0])
    third += batches(other, tells=False)
    got += [third, batches(other, tells=False)]
    rest = third[10:]
    # A state of a loader that gave no others.
    older = states[0]["sampling"].pop("substituted")
    blind = loader("importance", 0.3, then)
    blind.load_state_dict(states[0])
    unknown = [batches(blind, tells=False), batches(blind, tells=False)]

    def draws(epochs):
        return [[was, weights] for epoch in epochs for was, _, weights, _ in epoch]

    return {
        **judged(got, 0.3),
        "planned": draws(got) == draws(planned),
        "rest": sum(was != index for some, ids, _, _ in rest for was, index in zip(some, ids)),
        "blind": [judged([epoch], 0.3)["given"] for epoch in unknown],
        "state": len(older),
    }


def trace(folder):
    """What is recorded is what was drawn."""
    path = Path(folder) / "uses.csv"
    one = loader("importance", 0.3, cache_trace=str(path))
    got = [batches(one) for _ in range(4)]
    one._trace.flush()
    lines = path.read_text().splitlines()[1:]
    recorded = [int(line.split(",")[1]) for line in lines]
    found = [index for epoch in got for was, _, _, _ in epoch for index in was]
    return {"same": recorded == found, "given": judged(got, 0.3)["given"]}


def in_words(call):
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            call()
        except ValueError as error:
            return str(error)
    return "None"


class Untold(Parts):
    def __init__(self):
        super().__init__()
        del self.targets


def refused():
    def make(sampling, dataset=None, cache="200KB", **options):
        dataset = Parts() if dataset is None else dataset
        return lambda: stallscope.DataLoader(dataset, sampling=sampling, cache=cache, sampling_options=options)

    labels = [index % CLASSES for index in range(SAMPLES)]
    return {name: in_words(call) for name, call in {
        "plain": make("plain", substitute=0.1),
        "reuse": make("reuse", substitute=0.1),
        "off": make("plain", substitute=0),
        "no cache": make("iis", cache=None, substitute=0.1),
        "no classes": make("shade", Untold(), substitute=0.1),
        "labels": make("shade", Untold(), substitute=0.1, labels=labels),
        "many": make("iis", Untold(), substitute=0.1, labels=list(range(SAMPLES))),
        "short": make("iis", Untold(), substitute=0.1, labels=labels[1:]),
        "below": make("importance", substitute=-0.1),
        "above": make("importance", substitute=10),
        "words": make("importance", substitute="10%"),
        "bool": make("importance", substitute=True),
        "nan": make("importance", substitute=float("nan")),
    }.items()}  # fmt: skip


CASES = {name: globals()[name] for name in ("run", "off", "subset", "killed", "resumed", "trace", "refused", "files")}


def main():
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        name, *arguments = json.loads(case)
        warnings.simplefilter("ignore")
        print(json.dumps(CASES[name](*arguments)), flush=True)


if __name__ == "__main__":
    main()
