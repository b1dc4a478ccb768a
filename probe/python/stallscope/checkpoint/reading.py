"""Checkpoints read back: tensors into memory of their own."""

import torch

from stallscope import _native

from .errors import CheckpointError
from .tree import DTYPES, from_bytes


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


def named(folder, name):
    return _native.open_checkpoint(folder, name)
