"""torch's DataLoader, resumable in the midst of an epoch, with a cache where one is asked for."""

import torch.utils.data

from . import budget
from .keyed import keyed, start_of_worker
from .position import Positioned
from .store import Store, start_method_of, warn_plain


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
      A data set with neither is read as without a cache, and a warning says why.

    Not exact: a loader with `in_order=False`, and an IterableDataset, whose first batches are read again.
    """

    _budget_bytes = None
    _store = None
    _told = False

    def __init__(self, *args, cache=None, sampling="plain", **kwargs):
        if sampling != "plain":
            raise ValueError(f'sampling={sampling!r}: there is "plain", the draws of torch')
        budget_bytes = None if cache is None else budget.parse(cache)
        super().__init__(*args, **kwargs)
        # By their own names, under which frameworks that make a loader anew look for its arguments.
        self.cache = cache
        self.sampling = sampling
        self._budget_bytes = budget_bytes

    def cache_figures(self):
        """What came of the uses of samples so far, and what the pool has of the data set: counts and bytes by name. Empty
        without a cache."""
        return self._store.figures() if self._store is not None else {}

    def _get_iterator(self):
        if not self._keys_samples():
            if self._budget_bytes is not None and not self._told:
                self._told = True
                warn_plain(self.dataset, "its samples have no index")
            return super()._get_iterator()
        store = self._stored()
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

    def _stored(self):
        """What is kept of the data set as it is now; None without a cache."""
        if self._budget_bytes is None:
            return None
        if self._store is None or not self._store.is_of(self.dataset):
            self._store = Store(self.dataset, start_method_of(self), self._budget_bytes, "minio")
        return self._store

    def _after_batch(self):
        if self._store is None or self._store.space is None:
            return None
        self._store.begun(self)
        return self._store.batch

    def _keys_samples(self):
        data = torch.utils.data
        # Pipes seed themselves, and torch wants to see that they are pipes.
        others = [getattr(data, name) for name in ("IterableDataset", "MapDataPipe") if hasattr(data, name)]
        return not isinstance(self.dataset, tuple(others))
