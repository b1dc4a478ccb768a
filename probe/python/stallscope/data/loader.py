"""torch's DataLoader, resumable in the midst of an epoch, with a cache where one is asked for."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch.utils.data

from stallscope import _notices
from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.cache import packages as in_packages
from stallscope.data.cache.sample_sizes import Sizes
from stallscope.data.cache.split import base_index
from stallscope.data.cache.store import Store, start_method_of, warn_plain
from stallscope.data.pack.in_loader import about_to_iterate, in_chunks
from stallscope.data.pack.shuffle import Shuffle
from stallscope.data.prefetch.feed import safe_batches
from stallscope.data.resume.position import Positioned
from stallscope.data.resume.random_sources import attribute_of
from stallscope.data.sampling.packing import Packing
from stallscope.data.sampling.policies import PACKED, POLICIES, WEIGHTED, arranged
from stallscope.data.sampling.scores import Scores
from stallscope.data.sampling.weights import PlannedSubset, Weighted
from stallscope.data.seeding.per_sample import keyed
from stallscope.data.stand_in import put_in, start_of_worker

from .cache import budget
from .prefetch import manager
from .resume.persistent_workers import watch as watch_persistent_workers
from .sampling import window
from .trace import Trace


class DataLoader(Positioned):
    """torch's DataLoader: the same arguments, and the same samples in the same order. In addition it has a position that
    can be saved and restored, random augmentation that belongs to the sample, and on request a cache and other samplings.

    - Position: `state_dict()` returns it and `load_state_dict()` restores it, exact to the batch. The next iteration continues
      after the last batch that was handed over, in the order of samples that the epoch began with, and reads no earlier
      samples again. `stallscope.Checkpointer(loader=…)` calls both, as do Lightning and other code that saves the state of
      loaders.
    - Augmentation: before a sample of a map-style data set is made, Python's, numpy's and torch's generators are seeded from
      the epoch's seed and the index. So it is the same with any number of workers, and after a resume. The seed is that of torch's own
      order of samples: `torch.manual_seed` or `generator=`. A data set with `__getitems__` is seeded once per batch,
      from its indices. A sample that is drawn again within an epoch gets another augmentation.
        Without workers, a thread other than the main one makes samples as with torch's loader.

    Not exact: a loader with `in_order=False`, and an IterableDataset, whose first batches are read again.

    Args:
        dataset: As torch's, as are all arguments up to `in_order`; `shuffle` may also be a `stallscope.Shuffle`, for a packed data set. Omitted arguments have the defaults of the installed torch,
            and further arguments of that version are taken by name.
        cache: Memory for what samples are made from, shared by all workers, ranks and jobs of this user on the
            node that read the same data set: bytes, or text such as "8GiB" or "500MB". None for no cache. It keeps what comes
            before decoding and augmentation: the bytes of `dataset.fetch(index)` if the data set has that and
            `decode(bytes)`, else the file that a sample opens. A data set with neither is read as without a cache, and a warning
            says why. If the data set also has `augment(decoded)`, decoded samples are kept where that takes less time.
        cache_key: Names the data set where its state has no fingerprint (handles, connections) or does not matter (a generator
            of its own): jobs with the same class, length and key share what is kept. Without it they share only if class,
            code and all attributes are the same; nothing is shared between jobs if the state has no fingerprint. docs/cache.md says
            which changes of attributes between epochs are noticed.
        fetchers: Processes that read samples into the cache before workers ask for them, 0 to 32, where workers are forked.
        sampling: How samples are drawn: "plain" as torch draws them, or "importance", "reuse", "iis" or "shade", so that a
            cache saves more reads. docs/sampling.md says what each does and costs.
        sampling_options: Options of the sampling by name.
        cache_trace: File for a record of the samples that were used, for `stallscope simulate`.
        packages: Folder on a disk that takes one large read for many small ones, for "importance" and "iis" with a cache:
            samples of low importance that had to be read are kept in it in the order of their next draws, and are
            read many at a time. What is drawn stays the same. Made where it is missing, and empty again when the job is over.
        packages_limit: Bytes that this job's packages in that folder may take, or text such as "50GiB". None for as many as leave a
            tenth of its file system free.
        **kwargs: Arguments of a newer torch.

    Raises:
        ValueError: `cache` is not a size or exceeds the memory of this job, no order fits a `Shuffle`, the sampling does
            not work with `sampler=`, `batch_sampler=`, `packages=` or this data set, or an option is unknown. Also whatever torch raises.
        TypeError: `cache_key` is neither text, a number nor bytes, or `packages` no path. Also whatever torch raises.

    Example:
        >>> import stallscope
        >>> loader = stallscope.DataLoader(range(10), batch_size=4)
        >>> batches = iter(loader)
        >>> next(batches)
        tensor([0, 1, 2, 3])
        >>> position = loader.state_dict()
        >>> resumed = stallscope.DataLoader(range(10), batch_size=4)
        >>> resumed.load_state_dict(position)
        >>> list(resumed)
        [tensor([4, 5, 6, 7]), tensor([8, 9])]
    """

    _budget_bytes = None
    _in_packages: Any = None
    _store = None
    _trace = None
    _warned_of_no_index = _warned_of_weights = False
    _generation = 0

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | Shuffle | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        cache: int | str | None = None,
        cache_key: str | int | bytes | None = None,
        fetchers: int = 0,
        sampling: str = "plain",
        sampling_options: Mapping[str, Any] | None = None,
        cache_trace: str | os.PathLike[str] | None = None,
        packages: str | os.PathLike[str] | None = None,
        packages_limit: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        given = {
            "batch_size": batch_size, "shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler,
            "num_workers": num_workers, "collate_fn": collate_fn, "pin_memory": pin_memory, "drop_last": drop_last,
            "timeout": timeout, "worker_init_fn": worker_init_fn, "multiprocessing_context": multiprocessing_context,
            "generator": generator, "prefetch_factor": prefetch_factor, "persistent_workers": persistent_workers,
            "pin_memory_device": pin_memory_device, "in_order": in_order,
        }  # fmt: skip
        # What has the default stays out: an older torch lacks some arguments, or has another default.
        given = {name: value for name, value in given.items() if value is not _DEFAULTS[name]}
        if not isinstance(cache_key, (str, int, bytes, type(None))):
            raise TypeError(f"cache_key: a {type(cache_key).__name__} is neither text, a number nor bytes")
        budget_bytes = None if cache is None else budget.parse(cache)
        fetchers = manager.checked(fetchers)
        packages_bytes = _checked_packages(packages, packages_limit, cache, fetchers, sampling)
        if isinstance(shuffle, Shuffle):
            given = in_chunks(shuffle, dataset, given, sampling)
        torchs = {"dataset": dataset, **given, **kwargs}
        order, _, torchs = arranged(sampling, sampling_options, cache is not None, (), torchs)
        super().__init__(**torchs)
        watch_persistent_workers()
        # By their own names, under which frameworks that make a loader anew look for its arguments.
        self.cache = cache
        self.cache_key = cache_key
        self.fetchers = fetchers
        self.sampling = sampling
        self.sampling_options = sampling_options
        self.cache_trace = cache_trace if cache_trace is None else os.fspath(cache_trace)
        if cache_trace is not None and not self._keys_samples():
            raise ValueError("cache_trace= needs a data set whose samples have an index")
        self.packages = packages if packages is None else os.fspath(packages)
        self.packages_limit = packages_limit
        self._budget_bytes = budget_bytes
        self._order = order
        if packages is not None and order is not None:
            self._in_packages = in_packages.Settings(self.packages, packages_bytes, self.num_workers)
            order.packing = Packing(self.num_workers * (self.prefetch_factor or 2) + 1)

    def cache_figures(self) -> dict[str, Any]:
        """Figures on the uses of samples so far, and on what the pool keeps of the data set.

        Returns:
            A dict by name. Counts of uses: `hits`, `misses`, `substitutions`; of the hits, those `prefetched` and `late`. Bytes:
            `pool_bytes` taken from memory, `source_bytes` read from the source, `kept_bytes` of `capacity_bytes`. The pool's
            `kept_samples` and `evictions`. And `miss_ratio`, a list for caches of other sizes of (bytes, share of the uses
            from 0 to 1 that they would miss), empty for the first epoch or two. Of a data set with `fetch` and `decode`: `kept`,
            the form that is kept ("encoded" or "decoded"), and `kept_because`, the reason. Of a data set of files:
            `looks_at_files`, whether each use checks that its file is unchanged. With packages: of the misses, those `packaged`, which
            came in a package; `package_reads`, how many were read; and `package_read_bytes` and `package_written_bytes`, which
            `source_bytes` has none of. Without a cache the dict is empty.

        Example:
            >>> import stallscope
            >>> class Numbers:
            ...     def __len__(self):
            ...         return 8
            ...     def fetch(self, index):
            ...         return bytes([index])
            ...     def decode(self, data):
            ...         return data[0] / 10
            >>> loader = stallscope.DataLoader(Numbers(), batch_size=4, cache="1MiB")
            >>> for epoch in range(2):
            ...     batches = list(loader)
            >>> figures = loader.cache_figures()
            >>> figures["hits"], figures["misses"]
            (8, 8)
        """
        return self._store.figures() if self._store is not None else {}

    def invalidate(self) -> None:
        """Forgets what this job has kept of the data set: from the next iteration on its samples are read anew.

        For data whose changes the cache cannot see: files that `fetch` reads, rows behind a connection. All ranks have to
        call it. With `persistent_workers=True` it has an effect only before the first iteration: the workers keep the cache
        with which they were started.

        Example:
            >>> import stallscope
            >>> loader = stallscope.DataLoader(range(10), cache="1MiB")
            >>> loader.invalidate()
        """
        self._generation += 1
        self._store = None

    def weighted(self) -> Weighted:
        """Iterates batches with the ids of their samples and the weights of their losses.

        Works with every sampling, so that a script need not change with it; weights are 1 where all samples are drawn alike.

        Returns:
            An iterable of (batch, ids, weights) with the loader's length and position. `ids` is an int64 tensor of the samples'
            indices in the data set and `weights` a float32 tensor to multiply their losses with, both in the order of the batch
            and on the CPU.

        Raises:
            ValueError: The samples have no index, or one that is not a number; or the loader has `in_order=False`.

        Example:
            >>> import stallscope
            >>> loader = stallscope.DataLoader(range(64), batch_size=32, sampling="importance")
            >>> for batch, ids, weights in loader.weighted():
            ...     losses = (batch - 30.0).square()
            ...     loader.update(ids, losses)
            ...     loss = (losses * weights).mean()
            >>> bool((batch == ids).all()), weights.shape
            (True, torch.Size([32]))
        """
        if not self._keys_samples():
            raise ValueError("weighted() needs a data set whose samples have an index")
        if not getattr(self, "in_order", True):
            raise ValueError("weighted() needs batches in order: leave out in_order=False")
        return Weighted(self)

    def update(self, ids: torch.Tensor, losses: torch.Tensor) -> None:
        """Reports how hard samples are, so that samplings that learn draw harder ones more often. Others ignore it.

        Args:
            ids: The samples' ids, as `weighted()` returned them.
            losses: The loss, or the gradient's norm, of each sample, not negative. Negative numbers and NaN count as
                0, and a warning says so. The tensor may be on any device; the call does not wait for it.

        Raises:
            ValueError: The numbers of losses and ids differ, or no sample has such an id.

        Example:
            >>> import stallscope, torch
            >>> loader = stallscope.DataLoader(range(4), sampling="shade")
            >>> loader.update(torch.tensor([2, 0]), torch.tensor([0.7, 0.1]))
            >>> loader.update(torch.tensor([4]), torch.tensor([0.7]))
            Traceback (most recent call last):
            ValueError: there is no sample 4 among 4: give the ids that came with the batch
        """
        order = self._order
        scores = order.scores if order is not None else Scores(len(self.dataset))  # type: ignore[arg-type]
        scores.add(ids, losses)
        if order is not None and not order.learns:
            scores.take()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.sampling in WEIGHTED and not self._warned_of_weights:
            self._warned_of_weights = True
            _notices.warn(
                f"stallscope: sampling={self.sampling!r} draws some samples more often than others: iterate "
                "loader.weighted() and multiply each sample's loss with its weight, or training is biased",
                2,
            )
        return self._handing()

    def _handing(self):
        return super().__iter__()

    def _get_iterator(self):
        if not self._keys_samples():
            if self._budget_bytes is not None and not self._warned_of_no_index:
                self._warned_of_no_index = True
                warn_plain(self.dataset, "its samples have no index")
            return super()._get_iterator()
        about_to_iterate(self)
        store = self._stored()
        curve = store and store.curve_for(self, *self._ranks())
        if self._order is not None:
            space = store and store.space
            self._order.pool = space and PlannedSubset(space, partial(base_index, self.dataset), curve)
            if self._order.substitution is not None:
                self._order.substitution.look_into(store, self.dataset)
                if curve:
                    curve.of_drawn = True
            if self._order.packing is not None:
                if store is not None:
                    store.open_packages(self._order)
                self._order.packing.into(store)
        if store is not None and store.ahead is not None:
            store.ahead.of_loader(self, store.maker)
        served = {
            "dataset": keyed(self.dataset, store and store.maker), "worker_init_fn": start_of_worker(self.worker_init_fn)
        }  # fmt: skip
        if store is not None:
            served["collate_fn"] = store.collating(self.collate_fn)
        with put_in(self, served):
            return super()._get_iterator()

    def __getstate__(self):
        # A copy has connections of its own to what is kept.
        return {name: value for name, value in super().__getstate__().items() if name not in ("_store", "_trace")}

    def _stored(self):
        """What is kept of the data set as it is now; None without a cache."""
        if self._budget_bytes is None:
            return None
        if self._store is None or not self._store.is_of(self.dataset):
            policy = POLICIES[self.sampling]
            declared = self.cache_key, self._generation
            given = policy, self.fetchers, *declared, self._in_packages
            self._store = Store(self.dataset, start_method_of(self), self._budget_bytes, *given)
            if self.cache_trace is not None and self._store.space is not None:
                self._store.tally.sizes = Sizes.of(self._store.maker.samples)
        return self._store

    def _ranks(self):
        """How many processes divide the samples among them, and which of them this one is."""
        if self._order is not None:
            return self._order.ranks.count, self._order.ranks.rank
        sampler = attribute_of(self.batch_sampler, "sampler", self.sampler)
        distributed = torch.distributed
        world = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        replicas, rank = attribute_of(sampler, "num_replicas", 1), attribute_of(sampler, "rank")
        if not isinstance(replicas, int) or replicas < max(world, 2):
            return world, _rank() if world > 1 else 0
        return replicas, rank if isinstance(rank, int) else _rank()

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


_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(DataLoader.__init__).parameters.items()}


def _checked_packages(packages, limit, cache, fetchers, sampling):
    """The bytes that packages may take; None where nobody gave them, or there are none."""
    if packages is None:
        if limit is not None:
            raise ValueError(f"packages_limit={limit!r} is of packages: say where these are to be, packages=FOLDER")
        return None
    if not isinstance(os.fspath(packages), str):
        raise TypeError(f"packages={packages!r}: give the path of a folder as text")
    if sampling not in PACKED:
        known = " or ".join(f'sampling="{name}"' for name in PACKED)
        raise ValueError(f"packages={packages!r} has samples in the order of their next draws, which is known with {known} alone")
    if cache is None:
        raise ValueError(f'packages={packages!r} takes what the cache does not hold: say cache="8GiB", or as much as there is')
    if fetchers:
        raise ValueError(f"packages={packages!r} brings many samples at once, and fetchers={fetchers} reads them one by one: leave one of them out")
    return None if limit is None else budget.size(limit, "packages_limit")


def _tell(heard, handed):
    for one in heard:
        one(handed)


def _rank():
    """The number of this process among those that train together."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0
