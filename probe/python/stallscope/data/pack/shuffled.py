"""The sampler of a pack whose chunks are read whole."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch.utils.data

from stallscope import _native, _notices

from .shuffle import Shuffle, chosen, orders_of

if TYPE_CHECKING:
    from stallscope._native import PackImages, PackReader

# Samples that are so many batches back are used, and so many more for each worker that is known of, which makes that many beside what it
# prefetches: workers have theirs under way.
_BATCHES, _BATCHES_EACH, _BATCHES_UNKNOWN = 4, 2, 64
_PREFETCHED = 2
# Ranks of a job, each of which has a lane in the order of the epoch that it began.
_MOST_LANES = 1 << 20


class Shuffled(torch.utils.data.Sampler):
    """A rank's samples in the order of a `Shuffle`, an epoch after the other; `shuffled()` of a packed data set makes it.

    While it is iterated the data set's samples are taken from memory, into which threads of this process read chunks ahead.
    Each iteration is the next epoch, or that of `set_epoch()`.

    Example:
        >>> import stallscope
        >>> dataset = stallscope.PackedDataset("texts.pack")
        >>> sampler = dataset.shuffled(stallscope.Shuffle(memory="64MiB"), batch_size=1)
        >>> sorted(sampler), len(sampler)
        ([0, 1], 2)
    """

    def __init__(
        self,
        shuffle: Shuffle,
        pack: PackReader,
        images: PackImages | None,
        batch_size: int,
        rank: int,
        world_size: int,
        num_workers: int | None,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("world_size", world_size, 1), ("rank", rank, 0)):
            if type(value) is not int or value < least:
                raise ValueError(f"shuffled: {name}={value!r} has to be a whole number of at least {least}")
        if rank >= world_size:
            raise ValueError(f"shuffled: there is no rank {rank} among {world_size}")
        self.shuffle = shuffle
        self.batch_size, self.rank, self.num_replicas = batch_size, rank, world_size
        self.epoch = 0
        self._orders = orders_of(shuffle, pack, images)
        self._samples = self._orders.facts()[0]
        # By which a position knows that it is of the same chunks.
        self.version = pack.version
        self._window = chosen(shuffle, self._orders, batch_size, world_size, num_workers or 0)
        self._late = _BATCHES_UNKNOWN
        if num_workers is not None:
            self.made_ahead(num_workers, _PREFETCHED)
        # A position that was loaded, for its epoch; the pass that was begun last, and whether it is over.
        self._loaded: dict[str, Any] | None = None
        self._begun: dict[str, Any] | None = None
        self._is_over = True
        self._asked = 0
        self._reported = False
        # Whether rank and number of ranks are those of the process group, and not given.
        self.is_of_group = False
        self._warn_of_uneven()
        self.serve()
        # Threads of ours hold the memory.
        weakref.finalize(self, self._orders.end).atexit = False

    @property
    def chunks(self) -> int:
        """From how many chunks samples are drawn at a time, of all ranks together."""
        _, lanes, window = self._now()["recipe"]
        return min(lanes * window, self._orders.facts()[1])

    @property
    def predicted(self) -> float:
        """The design effect of this order on average over epochs."""
        _, lanes, window = self._now()["recipe"]
        return self._orders.predicted(lanes, window, self._batch())

    @property
    def measured(self) -> float:
        """The design effect of the epoch that was begun last, or else of the next one, over its whole batches."""
        return self._measured()[0]

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch's.

        Args:
            epoch: From 0 on.

        Example:
            >>> import stallscope
            >>> dataset = stallscope.PackedDataset("texts.pack")
            >>> sampler = dataset.shuffled(stallscope.Shuffle(memory="64MiB"), batch_size=1)
            >>> sampler.set_epoch(1)
        """
        self.epoch = epoch

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The position. With `stallscope.DataLoader` it is in the loader's.

        Args:
            batches: How many of the epoch that is under way were trained; omitted, as many as were asked for, which is more
                where workers make batches ahead.

        Returns:
            Plain data, for `load_state_dict()` of any rank.

        Example:
            >>> import stallscope
            >>> dataset = stallscope.PackedDataset("texts.pack")
            >>> sampler = dataset.shuffled(stallscope.Shuffle(memory="64MiB"), batch_size=1)
            >>> first = next(iter(sampler))
            >>> position = sampler.state_dict(batches=1)
            >>> sampler.load_state_dict(position)
            >>> sorted([first, *sampler])
            [0, 1]
        """
        # Workers make batches ahead: that all were asked for does not end the epoch of who says how many were trained.
        is_ahead = bool(batches) and self._begun is not None
        if self._is_over and not is_ahead:
            return {"epoch": self.epoch, "samples": self._samples, "pack": self.version, "at": self._loaded}
        at: dict[str, Any] = dict((self._begun if is_ahead else None) or self._now())
        batches = -(-self._asked // self.batch_size) if batches is None else batches
        at["start"] = min(self._samples, at["start"] + batches * self._batch())
        if at["start"] == self._samples:
            # Behind its last batch an epoch is over on all ranks, though those with a whole one were not asked for more.
            return {"epoch": self.epoch if self._is_over else at["epoch"] + 1, "samples": self._samples, "pack": self.version, "at": None}
        return {"epoch": at["epoch"], "samples": self._samples, "pack": self.version, "at": at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on at this position, whatever the number of ranks and the batch size are here.

        Args:
            state: What `state_dict()` returned, of any rank.

        Raises:
            ValueError: It is of another number of samples, or within an epoch of another state of the pack.

        Example:
            >>> import stallscope
            >>> dataset = stallscope.PackedDataset("texts.pack")
            >>> sampler = dataset.shuffled(stallscope.Shuffle(memory="64MiB"), batch_size=1)
            >>> sampler.load_state_dict(sampler.state_dict())
        """
        self.go_on(state["epoch"], state["at"], 0, state["samples"], state.get("pack"))

    # For the loader

    def position(self, is_under_way):
        """The pass that was begun last, or that of a position that was loaded, without how far it is; None between two epochs. `is_under_way`: the loader
        has batches of it still to hand over, whatever workers made ahead."""
        if is_under_way and self._begun is not None:
            return self._begun
        return self._loaded if self._is_over else self._now()

    def go_on(self, epoch, at, skip, samples, version):
        """The next pass is of `epoch`, at a position of some sampler's, of which the first `skip` batches of this rank are skipped. `version`: of
        that sampler's pack."""
        if samples != self._samples:
            raise ValueError(f"the position is of {samples} samples, here are {self._samples}")
        if at is not None and not 0 < at["recipe"][1] <= _MOST_LANES:
            raise ValueError(f"the position is damaged: it is of {at['recipe'][1]} ranks")
        # Positions of before have none.
        if at is not None and version not in (None, self.version):
            raise ValueError(
                "the position is within an epoch of another state of the pack: files were added, deleted or purged since, and chunks are read in another "
                "order; go on from a position between two epochs, or with the pack as it was"
            )
        self.epoch, self._is_over, self._begun = epoch, True, None
        self._loaded = None if at is None else {**at, "recipe": tuple(at["recipe"]), "skip": skip * self.batch_size}

    def serve(self):
        """The data set takes its samples from what is read for this order, also in workers that are started from now on: they are there before
        the sampler is asked for its first sample."""
        self._orders.put_on()

    def made_ahead(self, workers, batches):
        """A loader has so many workers, each of which makes so many batches ahead."""
        self._late = _BATCHES + (_BATCHES_EACH + batches) * workers

    def warn_of_dropped(self):
        """The loader drops batches that are not whole. A warning where the first ranks have a whole one more."""
        each, more = divmod(self._samples, self.num_replicas)
        if more and (each + 1) % self.batch_size == 0:
            _notices.warn(
                f"stallscope: {self._samples} samples over {self.num_replicas} ranks in batches of {self.batch_size}: with drop_last=True the first {more} "
                "ranks have a batch more than the others, for which collective calls would wait: use another batch size, or drop_last=False",
                4,
            )

    def _now(self):
        if not self._is_over:
            return self._begun
        if self._loaded is not None and self._loaded["epoch"] == self.epoch:
            return self._loaded
        return {"epoch": self.epoch, "recipe": (self.shuffle.seed, self.num_replicas, self._window), "start": 0, "skip": 0}

    def _batch(self):
        """Of all ranks."""
        return self.batch_size * self.num_replicas

    def __len__(self) -> int:
        left = self._samples - self._now()["start"]
        whole, rest = divmod(left, self._batch())
        each, more = divmod(rest, self.num_replicas)
        return whole * self.batch_size + each + (self.rank < more)

    def __iter__(self) -> Iterator[int]:
        # All of this is done as the first sample is asked for: iterators with workers begin a sampler twice.
        self._is_over = True
        at = self._now()
        if self._loaded is not at:
            self._loaded = None
        self._begun, self._is_over, self._asked = at, False, 0
        self.epoch = at["epoch"] + 1
        orders, each = self._orders, self.batch_size
        samples = orders.begin(at["recipe"], at["epoch"], self.rank, self.num_replicas, each, at["start"], at["skip"])
        self._report()
        for first in range(0, len(samples), each):
            orders.reached(max(0, first - self._late * each))
            for sample in samples[first : first + each]:
                self._asked += 1
                yield sample
        if self._begun is at:
            self._is_over, self._loaded = True, None

    def _measured(self):
        at = self._begun or self._now()
        return self._orders.measured(tuple(at["recipe"]), at["epoch"], self._batch())

    def _report(self):
        if self._reported or self.rank != 0:
            return
        self._reported = True
        effect, batches = self._measured()
        words = _native.memory_in_words
        _, lanes, window = self._begun["recipe"]
        needed = min(self._orders.bytes_of(window * -(-lanes // self.num_replicas)), self.shuffle.memory)
        drawn = f"samples of {self.chunks} chunks at a time" if self.chunks > 1 else "one chunk after the other"
        _notices.line(
            f"stallscope: shuffle: {drawn} ({words(needed)} of {words(self.shuffle.memory)} a rank); design effect {self.predicted:.2f} predicted, "
            f"{effect:.2f} measured over {batches} batches"
        )

    def _warn_of_uneven(self):
        each, more = divmod(self._samples, self.num_replicas)
        if more and each % self.batch_size == 0:
            _notices.warn(
                f"stallscope: {self._samples} samples over {self.num_replicas} ranks in batches of {self.batch_size}: the first {more} ranks have a batch "
                "of one sample more than the others, for which collective calls would wait: use another batch size, or drop_last=True",
                4,
            )
