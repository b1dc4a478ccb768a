"""Iterates loaders under every sampling; prints what they gave, a JSON line a case.

usage: sampling_job.py CASE...; a case is a JSON list of its name and its arguments.
"""

import json
import math
import random
import sys
import warnings
from functools import partial

import torch
from torch.utils.data import Dataset, IterableDataset, Subset

import stallscope
from stallscope import _random
from stallscope.data.cache.split import base_index
from stallscope.data.sampling.weights import PlannedSubset

SAMPLES, BATCH = 230, 8


class Noisy(Dataset):
    """Samples with random augmentation, some harder than others."""

    def __init__(self, samples=SAMPLES):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        assert type(index) is int
        return torch.tensor([float(index), torch.rand(()).item(), random.random()])


class Failing(Noisy):
    def __getitem__(self, index):
        if index == 50:
            raise OSError("no such sample")
        return super().__getitem__(index)


class Parts(Dataset):
    """One whose bytes can be kept."""

    def __len__(self):
        return 1000

    def fetch(self, index):
        return index.to_bytes(4, "little") * 250

    def decode(self, data):
        return torch.tensor([float(int.from_bytes(data[:4], "little")), torch.rand(()).item()])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(20))


def loader(sampling, workers=0, seed=5, dataset=None, **more):
    torch.manual_seed(seed)
    random.seed(seed)
    if sampling == "reuse":
        more.setdefault("cache", "200KB")
    if dataset is None:
        dataset = Parts() if sampling == "reuse" else Noisy()
    more.setdefault("batch_size", BATCH)
    return stallscope.DataLoader(dataset, num_workers=workers, sampling=sampling, **more)


def loss_of(ids):
    return (ids % 13).float() + 0.1


def train(one, epochs, stop=None):
    """Of each batch its samples' values, ids and weights; and the loader's position and the generators at batch `stop`."""
    got = []
    while one.state_dict()["epoch"] < epochs or one.state_dict()["batches"] is not None:
        for batch, ids, weights in one.weighted():
            # As dropout would.
            torch.rand(3)
            assert batch.reshape(len(ids), -1)[:, 0].long().tolist() == ids.tolist()
            got.append([batch.tolist(), ids.tolist(), weights.tolist()])
            one.update(ids, loss_of(ids))
            if len(got) == stop:
                return got, one.state_dict(), _random.capture()
    return got, None, None


def draws(sampling, workers, epochs, seed=5):
    got = []
    one = loader(sampling, workers, seed)
    for _ in range(epochs):
        length = len(one)
        epoch = []
        for batch, ids, weights in one.weighted():
            assert batch[:, 0].long().tolist() == ids.tolist() and ids.dtype == torch.int64
            assert weights.dtype == torch.float32
            epoch.append([ids.tolist(), weights.tolist()])
            one.update(ids, loss_of(ids))
        got.append({"length": length, "batches": epoch})
    return got


def resume(sampling, workers, then, stops, epochs=3, more=None):
    more = more or {}
    whole, _, _ = train(loader(sampling, workers, **more), epochs)
    same = []
    for stop in stops:
        before, state, generators = train(loader(sampling, workers, **more), epochs, stop)
        one = loader(sampling, then, seed=99, **more)
        # As a checkpoint keeps it.
        one.load_state_dict(state)
        one.go_on_with(generators)
        after, _, _ = train(one, epochs)
        same.append(before + after == whole)
    return {"batches": len(whole), "same": same}


def bias(sampling, samples=1000, epochs=40):
    """How far a figure's weighted mean is from its mean, in standard errors; and the range of the weights."""
    figure = (torch.arange(samples) % 17).double() + torch.arange(samples).double() / 250
    one = loader(sampling, dataset=Noisy(samples), batch_size=100)
    values, weighing = [], []
    for _ in range(epochs):
        for batch, ids, weights in one.weighted():
            values.append(weights.double() * figure[ids])
            weighing.append(weights.double())
            one.update(ids, ((ids * 7) % 13).float())
    values, weighing = torch.cat(values), torch.cat(weighing)
    mean, error = values.mean().item(), values.std().item() / math.sqrt(len(values))
    return {
        "off": (mean - figure.mean().item()) / error,
        "precise": error / figure.mean().item(),
        "weights": [weighing.min().item(), weighing.max().item()],
        "mean_weight": weighing.mean().item(),
    }


def steps(sampling, workers, steps):
    """Epochs that are left after so many batches."""
    one = loader(sampling, workers, dataset=Noisy(), batch_size=10)
    got = []
    for _ in range(3):
        for number, (batch, ids, _) in enumerate(one.weighted()):
            got.append(ids.tolist())
            if number + 1 == steps:
                break
    return got


def beside(sampling):
    """Two iterations at once: each whole."""
    one = loader(sampling)
    first, second = [], []
    for a, b in zip(one, one):
        first.append(a[:, 0].tolist())
        second.append(b[:, 0].tolist())
    return [first, second]


def failing(sampling, workers):
    """A sample that cannot be made: its batch is left out, and those behind it have their own ids."""
    one = loader(sampling, workers, dataset=Failing(), shuffle=True if sampling == "plain" else None)
    batches = iter(one.weighted().loader._handing())
    count = failed = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            break
        except OSError:
            failed += 1
            continue
        assert batch[:, 0].long().tolist() == [int(use) for use in batches.current.index]
        count += 1
    return {"batches": count, "failed": failed, "position": batches.current.batches}


def in_words(call):
    with warnings.catch_warnings(record=True) as outcome:
        warnings.simplefilter("always")
        try:
            result = call()
        except ValueError as error:
            return f"ValueError: {error}"
    outcome = [str(one.message) for one in outcome if "stallscope" in str(one.message)]
    return outcome or repr(result)


def refused():
    one = loader("importance")
    ids = torch.arange(4)
    nan = torch.tensor([1.0, float("nan"), -1.0, 2.0])
    make = stallscope.DataLoader
    sampler = torch.utils.data.RandomSampler(Noisy())
    calls = {
        "name": lambda: make(Noisy(), sampling="best"),
        "option": lambda: make(Noisy(), cache=1000, sampling="reuse", sampling_options={"use": 3}),
        "option of another": lambda: make(Noisy(), sampling="iis", sampling_options={"uses": 3}),
        "uses": lambda: make(Noisy(), cache=1000, sampling="reuse", sampling_options={"uses": 0}),
        "no cache": lambda: make(Noisy(), sampling="reuse"),
        "sampler": lambda: make(Noisy(), sampling="importance", sampler=sampler),
        "shuffle": lambda: make(Noisy(), sampling="importance", shuffle=False),
        "stream": lambda: make(Stream(), sampling="importance"),
        "labels": lambda: make(Noisy(), sampling="importance", sampling_options={"labels": [1, 2]}),
        "alone": lambda: make(Noisy(), sampling="importance", sampling_options={"num_replicas": 2, "rank": 0}),
        "rank": lambda: make(Noisy(), cache=1000, sampling="reuse", sampling_options={"num_replicas": 2, "rank": 2}),
        "lengths": lambda: one.update(ids, nan[:3]),
        "mean": lambda: one.update(ids, nan.mean()),
        "id": lambda: one.update(ids + SAMPLES - 2, nan),
        "below": lambda: one.update(ids - 1, nan),
        "unsound": lambda: one.update(ids, nan),
        "again": lambda: one.update(ids, nan),
        "lists": lambda: one.update([1, 2], [0.5, 0.25]),
        "attached": lambda: one.update(ids, torch.ones(4, requires_grad=True) * 2),
        "plain": lambda: loader("plain").update(ids, nan[:3]),
        "unweighted": lambda: [None for _ in loader("shade")] and None,
        "weighted": lambda: [None for _ in loader("shade").weighted()] and None,
    }
    return {name: in_words(call) for name, call in calls.items()}


def no_losses():
    one = loader("importance")

    def run():
        for _ in range(3):
            for _ in one.weighted():
                pass

    def look():
        two = loader("iis")
        for _ in two.weighted():
            break
        train(two, 3)

    return {"never": in_words(run), "after a look": in_words(look)}


def positions():
    """Positions of another order."""
    _, state, _ = train(loader("importance"), 2, 5)
    _, between, _ = train(loader("importance"), 2, None)
    made = loader("importance")
    between = made.state_dict()
    _, torchs, _ = train(loader("plain", shuffle=True), 2, 5)
    return {
        "other sampling": in_words(lambda: loader("shade").load_state_dict(state)),
        "to plain": in_words(lambda: loader("plain", shuffle=True).load_state_dict(state)),
        "from plain": in_words(lambda: loader("importance").load_state_dict(torchs)),
        "between epochs": in_words(lambda: loader("shade").load_state_dict(between)),
        "damaged": in_words(
            lambda: loader("importance").load_state_dict(
                {**state, "sampling": {**state["sampling"], "draws": state["sampling"]["draws"][:-9]}}
            )
        ),
    }


def uses(count, epochs=12, share=0.2):
    """How often each sample was used, and how many uses lie between a sample's runs; from a window of the seed's alone."""
    one = loader("reuse", sampling_options={"uses": count, "cache_share": share})
    used, weights = [], set()
    for _ in range(epochs):
        for batch, ids, weight in one.weighted():
            used += ids.tolist()
            weights |= set(weight.tolist())
    settled = one._order.settled
    return {"used": used, "weights": sorted(weights), "settled": settled}


def window(cache, batch_size=8, options=None):
    """What reuse makes of a cache for 1,000 samples of 1,000 bytes."""
    one = loader("reuse", cache=cache, batch_size=batch_size, sampling_options=options or {})
    outcome = in_words(lambda: next(iter(one)) is None)
    return {"messages": outcome, "settled": one._order.settled}


def cached(sampling, workers, epochs=5, cache="200KB"):
    """Hits in each epoch, of a data set of 1,000 samples in a cache of a fifth of it."""
    one = loader(sampling, workers, dataset=Parts(), cache=cache, batch_size=10, shuffle=True)
    hits, repeated = [], 0
    before = {"hits": 0, "misses": 0}
    for _ in range(epochs):
        seen = {}
        for batch, ids, _ in one.weighted():
            assert batch[:, 0].long().tolist() == ids.tolist()
            for value, drawn in batch.tolist():
                repeated += drawn in seen.setdefault(value, set())
                seen[value].add(drawn)
            one.update(ids, ((ids * 7) % 13).float() ** 2)
        now = one.cache_figures()
        count = now["hits"] - before["hits"]
        hits.append(count / (count + now["misses"] - before["misses"]))
        before = now
    return {"hits": hits, "alike": repeated, "policy": one._store.maker.kept.tells_uses}


def subset():
    """The pool hears of a subset's samples by the ids of the whole."""
    outcome = []

    class Space:
        def planned(self, next_uses):
            outcome.extend(index for index, _ in next_uses)

        def scored(self, scores):
            outcome.extend(index for index, _ in scores)

        def epoch(self):
            outcome.append(-1)

    dataset = Subset(Noisy(), list(range(100, 200)))
    found = {}
    for sampling in ("importance", "shade", "iis"):
        outcome.clear()
        one = loader(sampling, dataset=dataset)
        pool = PlannedSubset(Space(), partial(base_index, dataset))
        for _ in range(5):
            for batch, ids, _ in one.weighted():
                # There is no cache that would put one there.
                one._order.pool = pool
                one.update(ids, loss_of(ids))
        ids = [index for index in outcome if index >= 0]
        found[sampling] = {"range": [min(ids), max(ids)], "epochs": outcome.count(-1)}
    return found


CASES = {
    name: globals()[name]
    for name in (
        "draws", "resume", "bias", "steps", "beside", "failing", "refused", "no_losses", "positions", "uses", "window",
        "cached", "subset",
    )
}  # fmt: skip


def main():
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        name, *arguments = json.loads(case)
        warnings.simplefilter("ignore")
        print(json.dumps(CASES[name](*arguments)), flush=True)


if __name__ == "__main__":
    main()
