"""Who a rank is among those that iterate the same loader, as far as nobody has to ask the others."""

import os
from collections import Counter
from hashlib import blake2b

from stallscope.data.resume.random_sources import attribute_of

# What launchers tell the ranks of one job, and no two jobs of a node alike.
_OF_JOB = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")

# How many loaders of a kind this process has made so far.
_made: "Counter" = Counter()


class Member:
    """`loader`: a number that is the same in all ranks. `epoch_uses`: samples that this rank uses in an epoch. `job`: a
    number that tells jobs apart; 0: nothing does."""

    def __init__(self, loader, epoch_uses, job, rank, ranks):
        self.loader = loader
        self.epoch_uses = epoch_uses
        self.job = job
        self.rank = rank
        self.ranks = ranks


def member_of(loader, key, samples, rank, ranks):
    """Of a loader whose samples are in the space of this `key`, among so many `samples`: ranks may have different
    subsets of them. Ranks make loaders in the same order, or at least those that are alike."""
    batches = loader.batch_sampler
    sampler = attribute_of(batches, "sampler", loader.sampler)
    alike = (
        samples, loader.sampling, loader.batch_size, loader.drop_last, type(sampler).__name__, type(batches).__name__,
    )  # fmt: skip
    _made[key, alike] += 1
    variables = [os.environ.get(name) for name in _OF_JOB]
    job = _number(variables) if any(variables) else 0
    return Member(_number((alike, _made[key, alike])), _epoch_uses(loader.dataset, sampler, ranks), job, rank, ranks)


def _epoch_uses(dataset, sampler, ranks):
    # Of fewer draws caches do not fill.
    part = -(-len(dataset) // ranks)
    try:
        return max(len(sampler), part)
    except Exception:
        return part


def _number(value):
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=8).digest(), "little")
