"""Data sets, samplers and functions of loaders that `matrix_job.py` draws from. A module of its own: spawned workers import
it.

A sample has three parts: its index, its content, which is the same for every use, and what was drawn at random for it.
"""

import os
import random
from collections import namedtuple
from pathlib import Path

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, Subset, get_worker_info

Sample = namedtuple("Sample", ["index", "content", "drawn"])
PARTS = Sample._fields


class Refused(Exception):
    """An exception of the data set's own, which cannot be made from its message alone."""

    def __init__(self, index, why):
        super().__init__(f"sample {index} is refused: {why}")


ERRORS = {
    "value": lambda index: ValueError(f"sample {index} is broken"),
    "key": lambda index: KeyError(f"sample {index}"),
    "own": lambda index: Refused(index, "twice"),
}


class Base:
    """`drawing`: generators that a sample draws from; `broken`: (index, name of an error) or None; `salt`: tells the contents
    of data sets apart; `tag`: set by some workers' init functions."""

    tag = 0

    def __init__(self, length, form, drawing, broken, salt):
        self.length, self.form, self.drawing, self.broken, self.salt = length, form, drawing, broken, salt

    def __len__(self):
        return self.length

    def refuse(self, index):
        if self.broken is not None and self.broken[0] == index:
            raise ERRORS[self.broken[1]](index)

    def drawn(self):
        values = [0.0]
        if "torch" in self.drawing:
            values += torch.rand(2).tolist()
        if "python" in self.drawing:
            values.append(random.random())
        if "numpy" in self.drawing:
            values.append(float(numpy.random.random()))
        return torch.tensor(values, dtype=torch.float64)

    def content(self, index):
        return torch.arange(6, dtype=torch.int32).reshape(2, 3) * (index + 1) + self.salt + self.tag

    def made(self, index, content, drawn):
        if self.form == "dict":
            return {"index": index, "content": content, "drawn": drawn}
        if self.form == "named":
            return Sample(index, content, drawn)
        if self.form == "mixed":
            return index, {"image": content, "name": f"{index:03}"}, drawn.numpy()
        return index, content, drawn

    def sample(self, index):
        index = int(index)
        self.refuse(index)
        return self.made(index, self.content(index), self.drawn())


class Map(Base, Dataset):
    def __getitem__(self, index):
        return self.sample(index)


class Items(Map):
    """Makes batches at once; `gives`: in which form."""

    gives = "list"

    def __getitems__(self, indices):
        if self.gives == "generator":
            return (self.sample(index) for index in indices)
        if self.gives == "map":
            return map(self.sample, indices)
        samples = [self.sample(index) for index in indices]
        return tuple(samples) if self.gives == "tuple" else samples


class Whole(Base, Dataset):
    """Slices its columns by the indices of a batch."""

    def __getitem__(self, index):
        return self.sample(index)

    def __getitems__(self, indices):
        for index in indices:
            self.refuse(int(index))
        content = torch.stack([self.content(int(index)) for index in indices])
        return torch.tensor([int(index) for index in indices]), content, self.drawn()


class InParts(Base, Dataset):
    def fetch(self, index):
        index = int(index)
        self.refuse(index)
        return bytes([index]) * 300 + self.salt.to_bytes(8, "little")

    def decode(self, data):
        index = data[0]
        return self.made(index, torch.frombuffer(bytearray(data[-20:]), dtype=torch.uint8), self.drawn())

    def __getitem__(self, index):
        return self.decode(bytearray(self.fetch(index)))


class Augmented(InParts):
    def decode(self, data):
        return {"index": data[0], "pixels": torch.frombuffer(bytearray(data[-20:]), dtype=torch.uint8).clone()}

    def augment(self, decoded):
        pixels = decoded["pixels"]
        # In place: what was kept must not be seen to change.
        pixels += 1
        return self.made(decoded["index"], pixels, self.drawn())

    def __getitem__(self, index):
        return self.augment(self.decode(bytearray(self.fetch(index))))


class Files(Map):
    def __init__(self, length, form, drawing, broken, salt, folder):
        super().__init__(length, form, drawing, broken, salt)
        self.paths = [os.path.join(folder, f"{index:03}") for index in range(length)]
        Path(folder).mkdir(parents=True, exist_ok=True)
        for index, path in enumerate(self.paths):
            if not os.path.exists(path):
                Path(path).write_bytes(bytes([index]) * (200 + index) + salt.to_bytes(8, "little"))

    def content(self, index):
        with open(self.paths[index], "rb") as file:
            data = file.read()
        return torch.tensor([len(data), data[0], *data[-8:]])


class Stream(Base, IterableDataset):
    """Divides itself between its workers."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.length, step):
            yield self.sample(index)


class Unsized(Stream):
    __len__ = None


KINDS = {
    "map": Map, "items": Items, "whole": Whole, "parts": InParts, "augmented": Augmented, "files": Files,
    "stream": Stream, "unsized": Unsized,
}  # fmt: skip


class Drawing(Sampler):
    """Draws its order from Python's and numpy's generators when it is iterated."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        order = list(range(self.count))
        random.shuffle(order)
        yield from order[: self.count // 2]
        yield from numpy.random.permutation(order[self.count // 2 :]).tolist()

    def __len__(self):
        return self.count


class DrawingBatches(Drawing):
    """Batches of sizes that are drawn while they are asked for."""

    def __iter__(self):
        order = list(super().__iter__())
        while order:
            size = random.randint(1, 5)
            yield order[:size]
            order = order[size:]

    def __len__(self):
        return self.count // 3


def listing(samples):
    return list(samples)


def noisy(samples):
    """Draws, too."""
    return [list(samples), torch.rand(1)]


def as_it_is(batch):
    return batch


COLLATES = {"listing": listing, "noisy": noisy, "as-it-is": as_it_is}


def seeds_numpy(worker):
    numpy.random.seed(torch.initial_seed() % 2**32)
    random.seed(worker)


def tags(worker):
    dataset = get_worker_info().dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    dataset.tag = 1000


INITS = {"seeds-numpy": seeds_numpy, "tags": tags}
