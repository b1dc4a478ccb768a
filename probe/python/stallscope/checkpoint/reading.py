"""Checkpoints read back: tensors into the memory that they are wanted in."""

import math
import os
import re
import typing

import torch

from stallscope import _native
from stallscope._hooks.knobs import raised_by_signal

from .dtensors import Box, Saved, are_cells
from .errors import CheckpointError
from .state import is_of_a_job
from .tree import DTYPES, from_bytes
from .unread import Unread


class Latest(typing.NamedTuple):
    name: str
    world: int
    objects: list
    shapes: dict


class Reading:
    """A checkpoint that is being read: the native reader's attributes, and what several of its parts share."""

    def __init__(self, reader):
        self._reader = reader
        self.failed = None
        """The error that ended reading."""
        self._pieces = None

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def read(self, rank, places):
        """Fills dense memory on the CPU, as (name, address, bytes, region) say; every byte is checked on its way."""
        if self.failed is not None:
            raise self.failed
        try:
            self._reader.read_into(rank, places)
        except CheckpointError as error:
            self.failed = error
            raise

    def encoded(self, rank):
        """The JSON of a rank."""
        data = self.user(rank)
        if data is None:
            raise CheckpointError(
                f"{self.name} was not saved by stallscope.Checkpointer: it has tensors and no state of a job"
            )
        encoded = from_bytes(data)
        if not is_of_a_job(encoded):
            raise CheckpointError(f"{self.name} has a state that no stallscope.Checkpointer saves: another program made it")
        return encoded

    def pieces(self, shard):
        """Of a tensor that ranks saved together. CheckpointError where they are not all of it."""
        if self._pieces is None:
            self._pieces = {}
            for rank in range(self.world):
                stored = {name: (dtype, tuple(shape)) for name, dtype, shape in self.tensors(rank)}
                for one in shards(self, rank).values():
                    if one.is_saved and stored.get(one.name) != (one.dtype, one.box.sizes):
                        raise self.lacks(one.name)
                    if one.is_saved:
                        self._pieces.setdefault(one.name, []).append(Piece(rank, one.name, one.box))
        pieces = self._pieces.get(shard.name, [])
        boxes = [piece.box for piece in pieces]
        if not are_cells(boxes, shard.shape) or sum(math.prod(box.sizes) for box in boxes) != math.prod(shard.shape):
            raise self.lacks(shard.name)
        return pieces

    def lacks(self, name):
        return CheckpointError(f"{self.name} does not say where all of {name} is: another program made it")


class Shard(typing.NamedTuple):
    """What a rank says of its part of a tensor of several ranks."""

    name: str
    dtype: str
    shape: tuple
    box: Box
    dims: tuple
    is_saved: bool


def shards(reading, rank, encoded=None):
    """By name. CheckpointError where they make no sense."""
    found = {}
    for name, one in (encoded or reading.encoded(rank)).get("shards", {}).items():
        try:
            shape, box = tuple(one["shape"]), Box(tuple(one["offset"]), tuple(one["sizes"]))
            shard = Shard(name, one["dtype"], shape, box, tuple(one["dims"]), one["saved"])
            numbers = [*shape, *box.offset, *box.sizes, *(dim for dim in shard.dims if dim is not None)]
            fits = all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
            fits = fits and len(shape) == len(box.offset) == len(box.sizes) and all(dim is None or dim < len(shape) for dim in shard.dims)
        except (KeyError, TypeError):
            fits = False
        if not fits or shard.dtype not in DTYPES:
            raise reading.lacks(name)
        found[name] = shard
    return found


class Part:
    """What a rank saved: `encoded`, the JSON, and its tensors when they are asked for."""

    def __init__(self, reading, rank):
        self.reading = reading
        self.rank = rank
        self.encoded = reading.encoded(rank)
        # By name: type and shape.
        self._kinds = {}
        for name, dtype, shape in reading.tensors(rank):
            if dtype not in DTYPES:
                raise CheckpointError(f"{reading.name}: tensor {name!r} is of type {dtype}, which this torch does not have")
            self._kinds[name] = DTYPES[dtype], shape
        self._shards = shards(reading, rank, self.encoded)
        self._scalars = None

    def shapes(self):
        """Of the tensors, by name; of those of several ranks the whole one's."""
        shapes = {name: list(shape) for name, (_, shape) in self._kinds.items()}
        shapes.update((name, list(shard.shape)) for name, shard in self._shards.items())
        return shapes

    def tensors(self):
        """By name, on the CPU, in memory of their own: scalars now, the others when they are copied."""
        tensors = dict(self._read_scalars())
        for name, shard in self._shards.items():
            stored = Stored(self.reading, self.reading.pieces(shard), DTYPES[shard.dtype], Saved(shard.dims))
            tensors[name] = Unread(stored, shard.shape)
        for name, (dtype, shape) in self._kinds.items():
            if name not in tensors:
                piece = Piece(self.rank, name, Box((0,) * len(shape), tuple(shape)))
                tensors[name] = Unread(Stored(self.reading, [piece], dtype), shape)
        return tensors

    def _read_scalars(self):
        """Numbers of steps and the like, of which there are many and which are computed with as they are loaded. They lie together
        (probe/checkpoint/src/image.rs)."""
        if self._scalars is None:
            scalars = {name: torch.empty((), dtype=dtype, device="cpu") for name, (dtype, shape) in self._kinds.items() if not shape}
            self.reading.read(self.rank, [(name, one.data_ptr(), one.element_size(), None) for name, one in scalars.items()])
            self._scalars = scalars
        return self._scalars


class Piece(typing.NamedTuple):
    """A box of a tensor, as a rank saved it."""

    rank: int
    name: str
    box: Box


class Stored:
    """A tensor in a checkpoint: where an Unread one reads from. `saved`: how it lay across ranks, None where it did not."""

    def __init__(self, reading, pieces, dtype, saved=None):
        self.reading = reading
        self.pieces = pieces
        self.dtype = dtype
        self.saved = saved

    def places(self, target, offset=None):
        """[(rank, what Reading.read() takes)] that fill a dense tensor on the CPU with the box of its size that begins at `offset`, with
        all where there is none."""
        places = []
        wanted = Box(offset or (0,) * target.dim(), tuple(target.shape))
        for rank, name, box in self.pieces:
            both = wanted.overlap(box)
            if both is not None:
                begin = [at - first for at, first in zip(both.offset, box.offset)]
                to = [at - first for at, first in zip(both.offset, wanted.offset)]
                region = begin, list(both.sizes), list(wanted.sizes), to
                places.append((rank, (name, target.data_ptr(), target.numel() * target.element_size(), region)))
        return places


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
        return Latest(name, part.reading.world, list(part.encoded["objects"]), part.shapes())
    except (OSError, ValueError, KeyError, TypeError, CheckpointError) as error:
        if raised_by_signal(error):
            raise
        # restore() says what is wrong with it.
        return None


def named(folder, name):
    return Reading(_native.open_checkpoint(folder, name))
