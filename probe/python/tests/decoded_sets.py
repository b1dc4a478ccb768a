"""Data sets that fetch, decode and augment, as `decoded_job.py` iterates them. A module of its own: spawned workers
import it."""

import os
import random

import numpy
import torch
from cached_sets import FILES, Parts


class InParts(Parts):
    def __getitem__(self, index):
        return self.augment(self.decode(bytearray(self.fetch(index))))

    def decode(self, data):
        numbers = numpy.frombuffer(data, dtype="u1")[:600].astype("f4").reshape(20, 30)
        return {
            "array": numbers.transpose(1, 0),
            "tensor": torch.arange(12.0).reshape(3, 4) + len(data),
            "label": len(data) - 1000,
            "more": (bytes(data[:2]), [1.5, None, "name"]),
        }

    def augment(self, decoded):
        # In place: the next one to get these would see it.
        decoded["array"] += random.random()
        decoded["tensor"].mul_(1 + torch.rand(()))
        decoded["more"][1].append(numpy.random.random())
        array, tensor = decoded["array"], decoded["tensor"]
        # Sums depend on how the bytes lie.
        return decoded["label"], float(array.sum()), array.tolist(), tensor.tolist(), decoded["more"][1]


class Drawing(InParts):
    """Its decode draws a number and uses it for nothing."""

    def decode(self, data):
        torch.rand(())
        return super().decode(data)


class OwnDrawing(InParts):
    """Its decode draws from a generator of its own."""

    def __init__(self, folder):
        super().__init__(folder)
        self.own = random.Random(3)

    def decode(self, data):
        return {**super().decode(data), "more": ((), [self.own.random()])}


class Hidden(InParts):
    """Its decode is random in a way that no generator tells."""

    def decode(self, data):
        return {**super().decode(data), "noise": os.urandom(4)}


class Unkeepable(InParts):
    def decode(self, data):
        return {**super().decode(data), "set": {1, 2}}


class Sometimes(InParts):
    """What its decode gives cannot be kept of each sample, and one cannot be decoded."""

    def decode(self, data):
        if data[0] == 7:
            raise ZeroDivisionError("sample 7 is broken")
        return {**super().decode(data), **({"set": {1}} if data[0] in (5, 8) else {})}


class WithoutSamples(InParts):
    """Its parts are all it has."""

    __getitem__ = torch.utils.data.Dataset.__getitem__


class Earlier(InParts):
    """Its decode augments by itself; `augment` is its own affair."""

    def __getitem__(self, index):
        return self.decode(bytearray(self.fetch(index)))

    def decode(self, data):
        return self.augment(super().decode(data))


class Coin(Earlier):
    """Its decode augments by itself, which changes few samples."""

    def decode(self, data):
        return self.augment((len(data) - 1000,))

    def augment(self, decoded):
        return (-1,) if torch.rand(()) < 0.1 else decoded


class Wrong(InParts):
    # As those of a class above would not stand for its samples.
    fetch, decode = InParts.fetch, InParts.decode

    def __getitem__(self, index):
        return (*super().__getitem__(index), "and more")


class Fresh(InParts):
    """No two of its samples are the same, as its augment asks nobody's generators."""

    def augment(self, decoded):
        return decoded["label"], numpy.random.default_rng().random()


class Unused(Parts):
    """Has an augment() with which its samples are not made, and which leaves those alone that are tried."""

    def __getitem__(self, index):
        return self.decode(bytearray(self.fetch(index)))

    def decode(self, data):
        return data[0], [float(data[1])]

    def augment(self, decoded):
        return decoded if decoded[0] in (0, FILES // 2, FILES - 1) else (decoded[0], [-1.0])


SETS = {
    "in-parts": InParts, "drawing": Drawing, "own-drawing": OwnDrawing, "hidden": Hidden, "unkeepable": Unkeepable,
    "sometimes": Sometimes, "without-samples": WithoutSamples, "earlier": Earlier, "coin": Coin,
    "wrong": Wrong, "fresh": Fresh, "unused": Unused,
}  # fmt: skip
