"""Checkpoints read back: tensors into the memory that they are wanted in."""

import math
import os
import re
import typing

import torch

from stallscope import _native

from .errors import CheckpointError
from .tree import DTYPES, from_bytes
from .unread import Unread

# Tensors of up to so many bytes are read at once. They lie together in a checkpoint (probe/checkpoint/src/image.rs).
_SMALL_BYTES = 4096


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
        self.failed = None
        """The error that ended reading."""
        data = reader.user(rank)
        if data is None:
            raise CheckpointError(
                f"{reader.name} was not saved by stallscope.Checkpointer: it has tensors and no state of a job"
            )
        self.encoded = from_bytes(data)
        # By name: type and shape.
        self._kinds = {}
        for name, dtype, shape in reader.tensors(rank):
            if dtype not in DTYPES:
                raise CheckpointError(f"{reader.name}: tensor {name!r} is of type {dtype}, which this torch does not have")
            self._kinds[name] = DTYPES[dtype], shape
        self._small = None

    def shapes(self):
        """Of the tensors, by name."""
        return {name: list(shape) for name, (_, shape) in self._kinds.items()}

    def tensors(self):
        """By name, on the CPU, in memory of their own: the small ones now, the others when they are copied."""
        tensors = dict(self._read_small())
        for name, (dtype, shape) in self._kinds.items():
            if name not in tensors:
                tensors[name] = Unread(Stored(self, name, dtype), shape)
        return tensors

    def read(self, targets):
        """Fills dense tensors on the CPU by their names; every byte is checked on its way."""
        if self.failed is not None:
            raise self.failed
        places = [(name, one.data_ptr(), one.numel() * one.element_size(), None) for name, one in targets.items()]
        try:
            self.reader.read_into(self.rank, places)
        except CheckpointError as error:
            self.failed = error
            raise

    def _read_small(self):
        """Numbers of steps and the like, of which there are many and which are computed with as they are loaded; they lie together."""
        if self._small is None:
            small = {
                name: torch.empty(shape, dtype=dtype, device="cpu")
                for name, (dtype, shape) in self._kinds.items()
                if math.prod(shape) * torch.empty(0, dtype=dtype, device="cpu").element_size() <= _SMALL_BYTES
            }
            self.read(small)
            self._small = small
        return self._small


class Stored:
    """A tensor in a part: where an Unread one reads from."""

    def __init__(self, part, name, dtype):
        self.part = part
        self.name = name
        self.dtype = dtype

    def read_into(self, target):
        self.part.read({self.name: target})


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
