"""The orders in which a pack is read on, for the data sets of packs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch.utils.data

from .shuffle import Shuffle
from .shuffled import Shuffled

if TYPE_CHECKING:
    from stallscope._native import PackImages, PackReader


# The classes of which it is known that a sample is what `decode` makes of what `fetch` gives.
_WHOLE: set[type] = set()


def read_at_once(of):
    """A class whose samples are read several at once, from a pack in object storage."""
    _WHOLE.add(of)
    return of


def is_passed_on() -> bool:
    """Whether who asks for an attribute is the `__getattr__` of what wraps the data set, and may give other samples. Not where ours stands for it."""
    asks = sys._getframe(2)
    return asks.f_code.co_name in ("__getattr__", "__getattribute__") and not str(asks.f_globals.get("__name__")).startswith("stallscope.")


class InChunks(torch.utils.data.Dataset):
    """A data set whose samples lie in the chunks of a pack."""

    _pack: PackReader
    # Which of its files are samples; None: all.
    _images: PackImages | None = None

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[Any]]:
        """Of a pack in object storage: a batch, which is read at once. Others have none, and neither have subclasses and what wraps it, whose `__getitem__` may be another."""
        if self._stallscope_fetch_each is None or is_passed_on():
            raise AttributeError("__getitems__")
        return self._samples_of

    def _samples_of(self, indices: Sequence[int]) -> list[Any]:
        return [self.decode(data) for data in self._fetch_each(indices)]

    # For stallscope.DataLoader, which seeds before each sample: what `fetch` gives of each; None where one by one is as fast.

    @property
    def _stallscope_fetch_each(self):
        return self._fetch_each if self._pack.is_in_store and type(self) in _WHOLE else None

    def _fetch_each(self, indices):
        raise NotImplementedError

    def decode(self, data):
        raise NotImplementedError

    def in_chunk_order(self) -> list[int]:
        """The order in which samples lie in the pack's chunks, in which storage reads on without a seek: for `sampler=`.

        `stallscope pack` has shuffled that order once, so that batches have the mix of classes of a full shuffle. It is the same
        in each epoch, and each loader of several ranks has to take its own part of it.

        Returns:
            All indices, each once.

        Example:
            >>> import stallscope
            >>> dataset = stallscope.PackedDataset("texts.pack")
            >>> loader = stallscope.DataLoader(dataset, batch_size=2, sampler=dataset.in_chunk_order())
            >>> sorted(dataset.in_chunk_order())
            [0, 1]
        """
        return (self._pack if self._images is None else self._images).as_they_lie()

    def shuffled(
        self, shuffle: Shuffle, batch_size: int, *, rank: int = 0, world_size: int = 1, num_workers: int | None = None
    ) -> Shuffled:
        """A sampler for torch's own DataLoader with the order of a `Shuffle`; to `stallscope.DataLoader` the `Shuffle` itself is given.

        Args:
            shuffle: How well batches are to be mixed, and in how much memory.
            batch_size: Samples in a batch of one rank.
            rank: Of this process among those that train together.
            world_size: How many these are.
            num_workers: Of the loader; memory is set aside for a batch of each.

        Returns:
            The sampler. Its `chunks` is the number of chunks that are drawn from at a time, and `predicted` and `measured` are
            design effects: on average over epochs, and of the epoch that was begun last. Each iteration is the next epoch, or that of `set_epoch()`;
            `state_dict(batches=…)` gives the position behind so many batches, and `load_state_dict()` goes on there.

        Raises:
            ValueError: No order fits; the message says what would.

        Example:
            >>> import stallscope, torch
            >>> dataset = stallscope.PackedDataset("texts.pack")
            >>> sampler = dataset.shuffled(stallscope.Shuffle(memory="64MiB"), batch_size=2)
            >>> loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
            >>> sorted(sampler)
            [0, 1]
        """
        return Shuffled(shuffle, self._pack, self._images, batch_size, rank, world_size, num_workers)
