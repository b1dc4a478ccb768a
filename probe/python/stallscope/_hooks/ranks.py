"""Which rank of the job this process is."""

import os
import sys

# rank, world size, local rank: the launchers' names, the most specific first.
_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


def from_environment():
    """As the launcher says; a job of one where none says anything."""
    for rank, world_size, local_rank in _VARIABLES:
        if rank in os.environ and world_size in os.environ:
            return _fact(os.environ[rank], os.environ[world_size], os.environ.get(local_rank))
    return _fact(0, 1, 0)


def current():
    """As torch.distributed says once it is initialised, else as the launcher does."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        if distributed is not None and distributed.is_initialized():
            known = from_environment()
            return _fact(distributed.get_rank(), distributed.get_world_size(), known["local_rank"])
    except Exception:
        pass
    return from_environment()


def _fact(rank, world_size, local_rank):
    try:
        rank, world_size = int(rank), int(world_size)
        if not 0 <= rank < world_size:
            raise ValueError
        return {"rank": rank, "world_size": world_size, "local_rank": int(local_rank or 0)}
    except ValueError:
        return {"rank": 0, "world_size": 1, "local_rank": 0}
