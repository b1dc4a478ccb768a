"""Runs settings of `matrix_settings.py` through several loaders; prints a JSON line for each: what each loader gave.

usage: matrix_job.py FOLDER FIRST COUNT VARIANT...
"""

import gc
import hashlib
import json
import random
import sys
import time
import warnings
from pathlib import Path

import numpy
import torch
from matrix_sets import COLLATES, INITS, KINDS, PARTS, Drawing, DrawingBatches
from matrix_settings import STREAMS, setting
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

# After so many errors of the data set in an epoch its loop ends.
MOST_ERRORS = 3


def digest(value):
    """Hexadecimal digits for types and content of whatever a batch is made of."""
    seen = hashlib.blake2b(digest_size=8)

    def look(one):
        seen.update(type(one).__name__.encode())
        if isinstance(one, torch.Tensor):
            seen.update(f"{one.dtype}{tuple(one.shape)}".encode() + one.contiguous().numpy().tobytes())
        elif isinstance(one, numpy.ndarray):
            seen.update(f"{one.dtype}{one.shape}".encode() + one.tobytes())
        elif isinstance(one, dict):
            for key, part in one.items():
                look(key)
                look(part)
        elif isinstance(one, (list, tuple)):
            for part in one:
                look(part)
        else:
            seen.update(repr(one).encode())

    look(value)
    return seen.hexdigest()


def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


def parts_of(batch, given):
    """Ids, content and draws of a batch, in the forms that samples and collate functions give them."""
    if given["collate"] == "noisy":
        samples, noise = batch
        ids, content, drawn = parts_of(samples, {**given, "collate": "listing"})
        return ids, content, [drawn, digest(noise)]
    if given["collate"] == "listing":
        each = [parts_of(sample, {**given, "collate": None}) for sample in batch]
        return [list(part) for part in zip(*each)] if each else [[], [], []]
    ids, content, drawn = (batch[name] for name in PARTS) if given["form"] == "dict" and isinstance(batch, dict) else batch
    return plain(ids), digest([type(batch).__name__, content]), digest(drawn)


def states(*generators):
    """Of the process's generators and of these."""
    own = [repr(random.getstate()), repr(numpy.random.get_state()), torch.get_rng_state()]
    found = [*own, *(one.get_state() for one in generators)]
    return [digest(one)[:6] for one in found]


def sampling(given, dataset, generator):
    """The arguments that say which samples make a batch."""
    size, order, count = given["batch_size"], given["order"], len(dataset) if given["kind"] not in STREAMS else 0
    if order == "batches":
        return {"batch_sampler": [list(range(at, min(count, at + size))) for at in range(0, count, size)]}
    if order == "batch-sampler":
        return {"batch_sampler": BatchSampler(RandomSampler(dataset, generator=generator), size, given["drop_last"])}
    if order == "drawing-batches":
        return {"batch_sampler": DrawingBatches(count)}
    found = {"batch_size": size, "drop_last": given["drop_last"]}
    if order == "shuffle":
        return {**found, "shuffle": True}
    samplers = {
        "replacement": lambda: RandomSampler(dataset, replacement=True, num_samples=count + 3, generator=generator),
        "weighted": lambda: WeightedRandomSampler([1.0 + n for n in range(count)], count, generator=generator),
        "subset-random": lambda: SubsetRandomSampler(range(0, count, 2), generator=generator),
        "distributed": lambda: DistributedSampler(dataset, num_replicas=2, rank=1, seed=4, drop_last=given["drop_last"]),
        "drawing": lambda: Drawing(count),
        "list": lambda: [n * 7 % count for n in range(count)],
    }
    return {**found, "sampler": samplers[order]()} if order in samplers else found


def dataset_of(given, folder):
    kind = KINDS[given["kind"]]
    more = (folder,) if given["kind"] == "files" else ()
    broken = given["broken"] and tuple(given["broken"])
    dataset = kind(given["length"], given["form"], given["drawing"], broken, given["salt"], *more)
    if given["kind"] == "items":
        dataset.gives = given["gives"]
    return Subset(dataset, list(range(0, given["length"], 2))) if given["subset"] else dataset


def in_words(error):
    """What a job sees of an error, but for the lines of code that a worker's passed through, and the worker's number."""
    lines = str(error).strip().splitlines() or [""]
    first = lines[0].translate(str.maketrans("", "", "0123456789")) if len(lines) > 1 else lines[0]
    return [type(error).__name__, first, lines[-1]]


class Run:
    """One setting with one loader. `turn(loader, name, value)`: changes it in mid-epoch, or None."""

    def __init__(self, given, make, folder, turn=None):
        self.given, self.make, self.folder, self.turn = given, make, folder, turn
        self.generator = None
        self.events = []
        self.training = []

    def result(self):
        given = self.given
        torch.manual_seed(given["seed"])
        random.seed(given["seed"] + 1)
        numpy.random.seed(given["seed"] % 2**32)
        if given["generator"] is not None:
            self.generator = torch.Generator().manual_seed(given["generator"])
        try:
            loader = self.make(dataset_of(given, self.folder), **self.arguments())
        except Exception as error:
            return {"events": [["made", in_words(error)]], "states": []}
        if self.turn is not None:
            self.turn.loader = loader
        after = []
        for epoch, plan in enumerate(given["epochs"]):
            for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
                if isinstance(sampler, DistributedSampler):
                    sampler.set_epoch(epoch)
            try:
                self.events.append(["length", len(loader)])
            except TypeError as error:
                self.events.append(["length", in_words(error)])
            self.epoch(loader, plan)
            after.append(states(*([self.generator] if self.generator else [])))
        figures = loader.cache_figures() if hasattr(loader, "cache_figures") else {}
        return {"events": self.events, "states": after, "training": self.training, "figures": figures}

    def arguments(self):
        given, dataset = self.given, dataset_of(self.given, self.folder)
        found = {**sampling(given, dataset, self.generator), "num_workers": given["workers"], "generator": self.generator}
        if given["collate"]:
            found["collate_fn"] = COLLATES[given["collate"]]
        if given["init"]:
            found["worker_init_fn"] = INITS[given["init"]]
        if given["workers"]:
            found["multiprocessing_context"] = given["start"]
            found["persistent_workers"] = given["persistent"]
            if given["prefetch"]:
                found["prefetch_factor"] = given["prefetch"]
        return found

    def epoch(self, loader, plan):
        try:
            iterator = iter(loader)
        except Exception as error:
            self.events.append(["begin", in_words(error)])
            return
        kept, number, errors = None, 0, 0
        while plan["stop"] is None or number < plan["stop"]:
            if not self.one(iterator, "batch"):
                break
            errors += self.events[-1][0] == "error"
            if errors == MOST_ERRORS:
                break
            self.train()
            if plan["look"] and plan["look"][0] == number:
                kept = self.look(loader, plan["look"])
            for at, name, value in plan["turns"] if self.turn else ():
                if at == number:
                    self.turn(name, value)
            number += 1
        # In this order they go, with their workers.
        del iterator, kept
        gc.collect()

    def look(self, loader, plan):
        """A second iterator in mid-epoch, asked for some batches; itself, where it is to be kept."""
        _, count, keep = plan
        other = iter(loader)
        for _ in range(count):
            if not self.one(other, "look"):
                break
        return other if keep else None

    def one(self, iterator, name):
        """Whether there was a batch, or an error in its place."""
        try:
            batch = next(iterator)
        except StopIteration:
            self.events.append([name, "end"])
            return False
        except Exception as error:
            self.events.append(["error", in_words(error)])
            return True
        self.events.append([name, *parts_of(batch, self.given)])
        return True

    def train(self):
        draws = {"torch": lambda: torch.rand(1).item(), "python": random.random, "numpy": numpy.random.random}
        self.training.append(digest([float(draws[name]()) for name in self.given["trains"]]))


class Turn:
    """Turns knobs of the loader under way as the shim does when a collector asks for it."""

    loader = None

    def __init__(self, names):
        self.names = names
        self.turned = 0

    def __call__(self, name, value):
        from stallscope._hooks import loader_registry

        number = loader_registry.number_of(self.loader)
        size = loader_registry._known[number].size if number is not None else None
        knob = size and {"prefetch": size.depth_knob, "workers": size.workers_knob}[name if name in self.names else "prefetch"]
        if not knob:
            return
        knob.standing = None
        knob.answer(*knob.turn(3 * value if knob is size.depth_knob else value))
        self.turned += 1
        # New workers may be there before the epoch is over, or not.
        time.sleep(0.01 * value)


def ours(**options):
    def make(dataset, **more):
        import stallscope

        return stallscope.DataLoader(dataset, **more, **options)

    return make


def positioned(dataset, **more):
    from stallscope.data.resume.given import position

    return position(DataLoader(dataset, **more))


def variants(given):
    """Name -> (setting, loader, what turns it), of those that make sense."""
    workers, cache = given["workers"], {"cache": given["cache"], "fetchers": given["fetchers"]}
    # Workers that stay draw a seed once, others, and none, in each epoch.
    other = workers % 3 + 1 if given["persistent"] else 0 if workers else 2
    found = {
        "torch": (given, DataLoader, None),
        "positioned": (given, positioned, None),
        "ours": (given, ours(), None),
        "ours, other workers": ({**given, "workers": other, "prefetch": None}, ours(), None),
        "cached": (given, ours(**cache), None),
        "cached again": (given, ours(**cache), None),
    }
    if workers == 0 and given["drawing"]:
        # What samples draw in the training process is training's with torch alone.
        found["torch, undrawn"] = {**given, "drawing": []}, DataLoader, None
    if workers > 0:
        found["turned prefetch"] = given, DataLoader, Turn(["prefetch"])
        found["turned workers"] = given, DataLoader, Turn(["prefetch", "workers"])
        found["ours, turned"] = given, ours(**cache), Turn(["prefetch", "workers"])
    return found


def main():
    torch.set_num_threads(1)
    # What is there stays: to look through torch's own objects, as often as loaders go, takes longer than the loaders.
    gc.collect()
    gc.freeze()
    root, (first, count), names = Path(sys.argv[1]), map(int, sys.argv[2:4]), sys.argv[4:]
    for number in range(first, first + count):
        given, outcome = setting(number), {}
        for name, (one, make, turn) in variants(given).items():
            if name not in names:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome[name] = Run(one, make, str(root / str(number)), turn).result()
            outcome[name]["turned"] = turn.turned if turn else 0
            gc.collect()
        print(json.dumps({"number": number, "got": outcome}), flush=True)


if __name__ == "__main__":
    main()
