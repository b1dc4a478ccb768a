"""Which part of each global batch is this rank's, and what ranks tell each other."""

import os
import sys

from stallscope.checkpoint import ranks as groups


class Ranks:
    """Of torch.distributed where it is initialised, of a DistributedSampler, or as the user says."""

    def __init__(self, options, sampler):
        count, rank = _process_group()
        # The options or the sampler give the rank, and not the process group.
        self._is_given = sampler is not None or bool({"num_replicas", "rank"} & set(options))
        given_count = options.get("num_replicas", sampler.num_replicas if sampler else count)
        given_rank = options.get("rank", sampler.rank if sampler else rank)
        if not 0 <= given_rank < given_count:
            raise ValueError(f"sampling_options: there is no rank {given_rank} among {given_count}")
        # Ranks that are not those of the process group cannot be asked.
        self.of_others = given_count > 1 and (given_count, given_rank) != (count, rank)
        self.count, self.rank = given_count, given_rank
        self._joined = None
        self.local_rank, self.local_count = _on_this_node(self.count)

    def begin(self):
        """Collective among ranks that are joined. RuntimeError where they have been joined since the loader was made."""
        if self._joined is None:
            now, _ = _process_group()
            if not self._is_given and now != self.count:
                raise RuntimeError(
                    f"sampling=: the loader was made for {self.count} rank{'s'[: self.count != 1]} and the process group has {now}, so "
                    "that ranks would draw the same samples: make it after init_process_group"
                )
            alone = self.count == 1 or self.of_others
            self._joined = groups.Alone() if alone else groups.of_this_job()

    def gather(self, value):
        """`value` of every rank, by rank. Collective."""
        return self._joined.gather(value)

    def from_first(self, value):
        """Rank 0's `value`. Collective."""
        return self._joined.from_first(value)


def _process_group():
    """Number of ranks and which of them this one is, as torch.distributed has it now."""
    distributed = sys.modules.get("torch.distributed")
    joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return (distributed.get_world_size(), distributed.get_rank()) if joined else (1, 0)


def _on_this_node(count):
    """Rank and number of ranks on this node; where nobody says, each is on its own."""
    try:
        rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (rank, ranks) if 0 <= rank < ranks <= count else (0, 1)
