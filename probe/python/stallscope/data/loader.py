"""torch's DataLoader, resumable in the midst of an epoch, with a cache where one is asked for."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch.utils.data

from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.cache.sample_sizes import Sizes
from stallscope.data.cache.split import base_index
from stallscope.data.cache.store import Store, start_method_of, warn_plain
from stallscope.data.prefetch.feed import safe_batches
from stallscope.data.resume.position import Positioned
from stallscope.data.sampling.policies import POLICIES, WEIGHTED, arranged
from stallscope.data.sampling.scores import Scores
from stallscope.data.sampling.weights import PlannedSubset, Weighted
from stallscope.data.seeding.per_sample import keyed, start_of_worker

from .cache import budget
from .prefetch import manager
from .resume import persistent_workers
from .sampling import window
from .trace import Trace


class DataLoader(Positioned):
    """torch's DataLoader: the same arguments, the same samples in the same order. And:

    - `state_dict()` and `load_state_dict()` give and take its exact position. The next iteration goes on behind the
      last batch that was handed over, with the order of samples that the epoch began with, and reads nothing of what
      was there before. `stallscope.Checkpointer(loader=…)` does both, as do Lightning and whoever else asks a loader
      for its state.
    - Random augmentation belongs to the sample: before a sample of a map-style data set is made, Python's, numpy's and
      torch's generators are seeded from (seed, epoch, index). So it is the same with any number of workers, and after
      a resume. The seed is what torch's own order of samples comes from: `torch.manual_seed` or `generator=`. A data
      set with `__getitems__` is seeded once a batch, from its indices. A sample that is drawn again within an epoch
      is augmented anew.
    - `cache="8GiB"` (or bytes) keeps so much of what samples are made from in memory, for all workers, ranks and jobs of
      this user on the node that read the same data set. What is kept comes before decoding and augmentation: the
      bytes of `dataset.fetch(index)` where the data set has that and `decode(bytes)`, else the file that a sample opens.
      A data set with neither is read as without a cache, and a warning says why. Of one that has `augment(decoded)`, too,
      decoded samples are kept where that takes less time.
    - `cache_key="v2"` says which data set it is, where its state cannot be told (handles, connections) or says nothing (a
      generator of its own): jobs with the same class, length and key share what is kept. Without it they share only where
      class, code and all attributes are the same; of a state that cannot be told nothing is shared between jobs. Attributes
      that change between epochs are noticed where to look at them costs less than a thousandth of the epoch. `invalidate()`
      forgets what is kept.
    - `fetchers=8` processes read samples into the cache before workers ask for them, where workers are forked.
    - `sampling="importance"`, `"reuse"`, `"iis"` or `"shade"` draws other samples than torch, so that a cache saves more;
      `sampling_options={…}` are its options. `weighted()` gives the ids and weights of a batch, `update()` takes the losses.
      docs/sampling.md says what each does and what it costs.

    - `cache_trace="uses.csv"` records which samples were used, for `stallscope simulate uses.csv`.

    Not exact: a loader with `in_order=False`, and an IterableDataset, whose first batches are read again.
    """

    _budget_bytes = None
    _store = None
    _trace = None
    _told = _told_weights = False
    _generation = 0

    def __init__(
        self,
        *args: Any,
        cache: int | str | None = None,
        cache_key: str | int | bytes | None = None,
        fetchers: int = 0,
        sampling: str = "plain",
        sampling_options: Mapping[str, Any] | None = None,
        cache_trace: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(cache_key, (str, int, bytes, type(None))):
            raise TypeError(f"cache_key: a {type(cache_key).__name__} is neither text, a number nor bytes")
        budget_bytes = None if cache is None else budget.parse(cache)
        fetchers = manager.checked(fetchers)
        order, args, kwargs = arranged(sampling, sampling_options, cache is not None, args, kwargs)
        super().__init__(*args, **kwargs)
        persistent_workers.watch()
        # By their own names, under which frameworks that make a loader anew look for its arguments.
        self.cache = cache
        self.cache_key = cache_key
        self.fetchers = fetchers
        self.sampling = sampling
        self.sampling_options = sampling_options
        self.cache_trace = cache_trace if cache_trace is None else os.fspath(cache_trace)
        if cache_trace is not None and not self._keys_samples():
            raise ValueError("cache_trace= needs a data set whose samples have an index")
        self._budget_bytes = budget_bytes
        self._order = order

    def cache_figures(self) -> dict[str, Any]:
        """What came of the uses of samples so far, and what the pool has of the data set: counts and bytes by name. And
        `miss_ratio`: for caches of other sizes, in bytes, the share of the uses that they would miss, once an epoch or two
        have told. Empty without a cache."""
        return self._store.figures() if self._store is not None else {}

    def invalidate(self) -> None:
        """Forgets what this job has kept of the data set: from the next iteration on its samples are read anew. For data that
        changed where nobody can see it: files that `fetch` reads, rows behind a connection. All ranks have to call it."""
        self._generation += 1
        self._store = None

    def weighted(self) -> Weighted:
        """Iterates (batch, ids, weights): an int64 tensor of the samples' indices in the data set and a float32 tensor of
        what each sample's loss is to be multiplied with, both in the order of the batch and on the CPU."""
        if not self._keys_samples():
            raise ValueError("weighted() needs a data set whose samples have an index")
        if not getattr(self, "in_order", True):
            raise ValueError("weighted() needs batches in order: leave out in_order=False")
        return Weighted(self)

    def update(self, ids: torch.Tensor, losses: torch.Tensor) -> None:
        """Tells the loss, or the gradient's norm, of each of the samples `ids`: tensors of one number a sample, on any
        device. What is negative or no number counts as 0. Samplings that do not learn take no notice of it."""
        order = self._order
        scores = order.scores if order is not None else Scores(len(self.dataset))  # type: ignore[arg-type]
        scores.add(ids, losses)
        if order is not None and not order.learns:
            scores.take()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.sampling in WEIGHTED and not self._told_weights:
            self._told_weights = True
            warnings.warn(
                f"stallscope: sampling={self.sampling!r} draws some samples more often than others: iterate "
                "loader.weighted() and multiply each sample's loss with its weight, or training is biased",
                RuntimeWarning,
                stacklevel=2,
            )
        return self._handing()

    def _handing(self):
        return super().__iter__()

    def _get_iterator(self):
        if not self._keys_samples():
            if self._budget_bytes is not None and not self._told:
                self._told = True
                warn_plain(self.dataset, "its samples have no index")
            return super()._get_iterator()
        store = self._stored()
        curve = store and store.curve_for(self, *self._ranks())
        if self._order is not None:
            space = store and store.space
            self._order.pool = space and PlannedSubset(space, partial(base_index, self.dataset), curve)
            if self._order.substitution is not None:
                self._order.substitution.look_into(store, self.dataset)
                if curve:
                    curve.of_drawn = True
        if store is not None and store.ahead is not None:
            store.ahead.of_loader(self)
        # The iterator takes these from here, once; the loader's own attributes stay the user's.
        own = {name: self.__dict__[name] for name in ("dataset", "worker_init_fn", "collate_fn")}
        self.__dict__.update(
            dataset=keyed(self.dataset, store and store.maker), worker_init_fn=start_of_worker(self.worker_init_fn)
        )
        if store is not None:
            self.__dict__["collate_fn"] = store.collating(self.collate_fn)
        try:
            return super()._get_iterator()
        finally:
            self.__dict__.update(own)

    def __getstate__(self):
        # A copy has connections of its own to what is kept.
        return {name: value for name, value in super().__getstate__().items() if name not in ("_store", "_trace")}

    def _stored(self):
        """What is kept of the data set as it is now; None without a cache."""
        if self._budget_bytes is None:
            return None
        if self._store is None or not self._store.is_of(self.dataset):
            policy = POLICIES[self.sampling]
            said = self.cache_key, self._generation
            self._store = Store(self.dataset, start_method_of(self), self._budget_bytes, policy, self.fetchers, *said)
            if self.cache_trace is not None and self._store.space is not None:
                self._store.tally.sizes = Sizes.of(self._store.maker.samples)
        return self._store

    def _ranks(self):
        """How many processes divide the samples among them, and which of them this one is."""
        if self._order is not None:
            return self._order.ranks.count, self._order.ranks.rank
        sampler = getattr(self.batch_sampler, "sampler", self.sampler)
        distributed = torch.distributed
        world = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        told, rank = getattr(sampler, "num_replicas", 1), getattr(sampler, "rank", None)
        if not isinstance(told, int) or told < max(world, 2):
            return world, _rank() if world > 1 else 0
        return told, rank if isinstance(rank, int) else _rank()

    def _share_of_cache(self):
        store = self._stored()
        if store is None or store.space is None:
            return None
        # Measured, and so another number on each node: none for ranks that cannot ask each other.
        alone = self._order is not None and self._order.ranks.of_others
        if store.form.share is not None and not alone:
            return store.form.share
        return window.share_of(self.dataset, start_method_of(self), self._budget_bytes)

    def _feed(self, course):
        store = self._store
        # A forked child that iterates what it inherited has no fetchers.
        if store is None or store.ahead is None or store.ahead.owner != os.getpid() or not self._keys_samples():
            return None
        try:
            return store.feed(safe_batches(self) if course is None else 0, course, self._auto_collation)
        except Exception as error:
            if raised_by_signal(error):
                raise
            return None

    def _after_batch(self):
        heard = []
        store = self._store
        if store is not None and store.space is not None:
            store.begun(self)
            heard.append(store.batch)
        if self.cache_trace is not None:
            if self._trace is None:
                self._trace = Trace(self.cache_trace, _rank())
                weakref.finalize(self, self._trace.flush)
            self._trace.begun(self.dataset, store.tally.sizes if heard else None, self._order)
            heard.append(self._trace.batch)
        return partial(_tell, heard) if heard else None

    def _keys_samples(self):
        data = torch.utils.data
        # Pipes seed themselves, and torch wants to see that they are pipes.
        others = [getattr(data, name) for name in ("IterableDataset", "MapDataPipe") if hasattr(data, name)]
        return not isinstance(self.dataset, tuple(others))


def _tell(heard, handed):
    for one in heard:
        one(handed)


def _rank():
    """The number of this process among those that train together."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    told = os.environ.get("RANK", "0")
    return int(told) if told.isdigit() else 0
