"""A cache under a loader of torch's own, in a job whose script knows nothing of it.

The data set makes its samples by itself, one by one or a batch at a time, as without: nothing is seeded, drawn or made twice, and what it
raises arrives. Only the bytes of the files that it opens come from memory.
"""

from hashlib import blake2b

import torch.utils.data

from stallscope import _native
from stallscope._hooks import process
from stallscope._hooks.patch import passed_over
from stallscope.data.stand_in import StandIn, start_of_worker

from . import open_hook
from .knobs import number_of
from .makers import FromFiles
from .store import Store

_PLAIN = (list, tuple, range, torch.Tensor)


class _Opens(FromFiles):
    makes_again = False

    def __init__(self, dataset, samples, kept, *args):
        super().__init__(dataset, samples, kept, *args)
        # The loader may have a timeout, which goes by how long reading takes and not by how long another job's reading does.
        kept.waits = 1
        # To look an index up in anything else may be a draw.
        self.knows_indices = all(type(indices) in _PLAIN for indices in _indices(dataset))

    def number_of(self, index):
        return super().number_of(index) if self.knows_indices else None

    def handed_out(self, data, name, reopen):
        return open_hook.Itself(data, name, reopen)


def _indices(dataset):
    while type(dataset) is torch.utils.data.Subset:
        yield dataset.indices
        dataset = dataset.dataset


class UnmodifiedStore(Store):
    of_files_alone = True
    of_files = _Opens
    refusal = ""

    def _looks(self, found, key):
        # The script cannot say that a file has changed.
        return blake2b(key + b"looks always", digest_size=32).digest(), True

    def _plain(self, why):
        self.space = None
        self.refusal = f"Nothing is kept of {type(self.dataset).__name__} in the job's cache: {process.text(why)}."
        # Not a warning, which the job may turn into an error.
        process.unavailable(self.refusal)

    def refused(self, loader):
        """Shows why the loader has no cache, where its knob would be."""
        number = number_of(loader)
        if number is not None and number != self.number:
            self.number = number
            _native.knob_unavailable("cache.bytes", "bytes", 0, number, self.refusal)

    def served(self, loader):
        """The attributes that an iterator of the loader is to find in the place of the loader's own."""
        return {
            "dataset": _Served(self.dataset, self.maker),
            "worker_init_fn": start_of_worker(loader.worker_init_fn),
            "collate_fn": self.collating(loader.collate_fn),
        }


class _Served(StandIn):
    # A frame of ours in the call of the data set is one too many already: what it does is written out in each of the two.
    @passed_over
    def __getitem__(self, index):
        use = self._stallscope_maker.use_of(index)
        if use is None:
            return self._stallscope_dataset[index]
        making = self._stallscope_maker.making([use])
        before = open_hook.take(making)
        try:
            return self._stallscope_dataset[index]
        finally:
            open_hook.give_back(before)
            making.over()

    def __getattr__(self, name):
        value = super().__getattr__(name)
        if name != "__getitems__" or not value:
            return value

        @passed_over
        def getitems(indices):
            # What else a sampler gives may be there only once.
            uses = [self._stallscope_maker.use_of(index) for index in indices] if type(indices) in (list, tuple) else []
            making = self._stallscope_maker.making(uses)
            before = open_hook.take(making)
            try:
                return value(indices)
            finally:
                open_hook.give_back(before)
                making.over()

        return getitems
