"""What the ranks of a job tell each other about checkpoints: few, small messages, over CPU sockets of their own.

Nothing here waits longer than the process group's timeout, as with every collective of the job's.
"""

import json
import sys
import zlib

import torch

from .errors import CheckpointError


def of_this_job():
    """The ranks of torch.distributed where it is initialised, else a job of one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Alone()
    return Group(distributed) if distributed.get_world_size() > 1 else Alone()


class Alone:
    """A job of one rank."""

    rank = 0
    world_size = 1

    def gather(self, value):
        """`value` of every rank, by rank."""
        return [value]

    def from_first(self, value):
        """Rank 0's `value`."""
        return value

    def most(self, values):
        """The largest of every rank, number by number."""
        return values

    def together(self, work, shards_of=None):
        """What `work()` gives; where it raises on one rank it raises on all of them. CheckpointError too where `shards_of` that, as
        tree.Writer has them, are not of the same tensors on all ranks."""
        return work()

    def refuse_unlike(self, forms):
        """CheckpointError on all ranks where these, by object, are not the same on each, or one has an object that the first has not."""


class Group:
    """The ranks of a process group. Making it is collective: every rank makes its Checkpointer."""

    def __init__(self, distributed):
        self.distributed = distributed
        self.rank = distributed.get_rank()
        self.world_size = distributed.get_world_size()
        # The job's own may be of devices, and in the midst of something.
        self.group = distributed.new_group(backend="gloo")

    def gather(self, value):
        values = [None] * self.world_size
        self.distributed.all_gather_object(values, value, group=self.group)
        return values

    def from_first(self, value):
        values = [value]
        self.distributed.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def most(self, values):
        tensor = torch.tensor(values, dtype=torch.int64, device="cpu")
        self.distributed.all_reduce(tensor, op=self.distributed.ReduceOp.MAX, group=self.group)
        return tensor.tolist()

    def together(self, work, shards_of=None):
        given = failed = digest = None
        try:
            given = work()
            digest = shards_of and _digest(shards_of(given))
        except Exception as error:
            failed = error
        reports = self.gather((None if failed is None else str(failed), digest))
        if failed is not None:
            raise failed
        for rank, (reason, _) in enumerate(reports):
            if reason is not None:
                raise CheckpointError(f"rank {rank}: {reason}")
        if len({digest for _, digest in reports}) > 1:
            raise CheckpointError(
                "the ranks have DTensors of different names, shapes or placements, and one checkpoint holds parts of the same ones: give the "
                "Checkpointer the same objects on each rank"
            )
        return given

    def refuse_unlike(self, forms):
        first, *others = self.gather(forms)
        for rank, other in enumerate(others, 1):
            for name, form in other.items():
                if name not in first:
                    raise CheckpointError(
                        f"rank {rank} has {name!r} and rank 0, which saves for all, has not: give it to rank 0 too, or have each rank save its "
                        "own with sharded=True"
                    )
                if form != first[name]:
                    raise CheckpointError(
                        f"{name} has other parameters on rank {rank} than on rank 0, which saves for all: have each rank save its own with sharded=True"
                    )


def _digest(shards):
    """The same on ranks that have parts of the same tensors."""
    common = [(name, one["dtype"], one["shape"], one["dims"]) for name, one in sorted(shards.items())]
    return zlib.crc32(json.dumps(common).encode())
