"""Checkpoints read back: tensors into memory of their own."""

import os
import re
import typing

import torch

from stallscope import _native

from .errors import CheckpointError
from .tree import DTYPES, from_bytes


class Latest(typing.NamedTuple):
    name: str
    world: int
    objects: list
    shapes: dict


class Part:
    """What a rank saved: `encoded`, the JSON, and its tensors when they are asked for."""

    def __init__(self, reader, rank):
        self.reader = reader
        self.rank = rank
        data = reader.user(rank)
        if data is None:
            raise CheckpointError(
                f"{reader.name} was not saved by stallscope.Checkpointer: it has tensors and no state of a job"
            )
        self.encoded = from_bytes(data)

    def shapes(self):
        """Of the tensors, by name."""
        return {name: list(shape) for name, _, shape in self.reader.tensors(self.rank)}

    def tensors(self):
        """By name, on the CPU; every byte is checked on its way."""
        read, targets = {}, []
        for name, dtype, shape in self.reader.tensors(self.rank):
            if dtype not in DTYPES:
                raise CheckpointError(
                    f"{self.reader.name}: tensor {name!r} is of type {dtype}, which this torch does not have"
                )
            tensor = read[name] = torch.empty(shape, dtype=DTYPES[dtype])
            targets.append((name, tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        self.reader.read_into(self.rank, targets)
        return read


def newest(folder):
    """The newest checkpoint that verifies, and what is wrong with newer ones."""
    return _native.newest_checkpoint(folder)


def set_aside(folder):
    """Names of the checkpoints that did not verify, now or in an earlier run."""
    try:
        return sorted(os.listdir(os.path.join(folder, "quarantine")))
    except OSError:
        return []


def latest(folder):
    """Of the checkpoint that was saved last, by the folder's word: how many ranks saved it, and of rank 0 what its objects are called and
    the shapes of its tensors by name. None where there is none, or it cannot be read."""
    try:
        # What is there may be anything, such as a FIFO.
        opened = os.open(os.path.join(folder, "latest"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, encoding="utf-8") as file:
            name = file.read(200).strip()
        if not re.fullmatch(r"step-[0-9.]+", name):
            return None
        part = Part(named(folder, name), 0)
        return Latest(name, part.reader.world, list(part.encoded["objects"]), part.shapes())
    except (OSError, ValueError, KeyError, TypeError, CheckpointError):
        # restore() says what is wrong with it.
        return None


def named(folder, name):
    return _native.open_checkpoint(folder, name)
