"""The cache of a job whose script has none (`run --cache`, or `--tune act --memory`): under the first of torch's own loaders that trains.

It changes no sample. Each rank has its own loader, and the ranks of a node share what is kept. Of other data sets that the job trains on beside the first, nothing
is kept; of one that takes the first's place, as where a script makes its data set anew for each epoch, what the pool still has is used again.
"""

import os
import sys
import threading
import weakref
from collections import deque

from . import evaluation, importable, process, ranks, worker
from .knobs import raised_by_signal
from .patch import passed_over

_VARIABLE = "STALLSCOPE_CACHE_BYTES"
# What an iterator takes from its loader.
_TAKEN = {"dataset", "worker_init_fn", "collate_fn"}
_SECOND = (
    "The job's cache keeps the data set that was trained on first, a {}: nothing is kept of a further one, a {}; give its loader "
    "a cache of its own by stallscope.DataLoader(cache=…)."
)

# The job's data set and its store, which live as long as the job has them, or a loader of it.
_of_job: tuple = ()
_stores: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()
# Whether none is named so far that came beside it, and none that cannot be served.
_names_further = _names_unserved = True
# Of the iterator that this thread makes: its uses.
_made = threading.local()


def is_on():
    return bool(os.environ.get(_VARIABLE))


def serving(get_iterator):
    """`get_iterator`, the method of torch's loader: an iterator that it makes, and so its workers, take the stand-in for the data set."""

    def _get_iterator(self):
        uses = _uses_of(self)
        if uses is None:
            iterator = get_iterator(self)
            # Its number is known by now.
            _heard(_show_refusal, self)
            return iterator
        from stallscope.data.stand_in import put_in

        _made.uses = uses
        try:
            with put_in(self, uses.store.served(self)):
                iterator = get_iterator(self)
        finally:
            _made.uses = None
        _heard(uses.begin)
        return iterator

    return _get_iterator


def begin(iterator):
    """`iterator` is being made; where its loader is served, the cache hears of its batches."""
    uses = getattr(_made, "uses", None)
    if uses is not None:
        iterator.__dict__["_stallscope_cache"] = uses


def _uses_of(loader):
    """The uses of an iterator that the loader is about to make; None where nothing is kept for it."""
    try:
        store = _store_of(loader) if _is_served(loader) else None
        return None if store is None or store.space is None else _Uses(store, loader)
    except Exception as error:
        if raised_by_signal(error):
            raise
        process.unavailable(f"The job's cache cannot be used: {type(error).__name__}: {error}.")
        return None


def _is_served(loader):
    data, ours = sys.modules["torch.utils.data"], sys.modules.get("stallscope.data.loader")
    streams = tuple(getattr(data, name) for name in ("IterableDataset", "MapDataPipe") if hasattr(data, name))
    return (
        (ours is None or not isinstance(loader, ours.DataLoader))
        # Not where a subclass has made properties of them.
        and _TAKEN <= loader.__dict__.keys()
        and not isinstance(loader.dataset, streams)
        and data.get_worker_info() is None
        and sys.modules["torch"].is_grad_enabled()
        and not evaluation.under_way()
    )


def _store_of(loader):
    global _of_job, _names_further, _names_unserved
    from stallscope.data.cache import budget
    from stallscope.data.cache.store import start_method_of
    from stallscope.data.cache.unmodified import UnmodifiedStore

    found = importable.by_workers(start_method_of(loader))
    if not (found and worker.torch_fetches()):
        if _names_unserved:
            why = "code of the job's own fetches its samples" if found else importable.NOT_FOUND
            process.unavailable(f"Nothing is kept of {type(loader.dataset).__name__} in the job's cache: {why}.")
        _names_unserved = False
        return None
    dataset = loader.dataset
    first, store = (one() for one in _of_job) if _of_job else (None, None)
    if first is not None and first is not dataset:
        if _names_further:
            process.unavailable(_SECOND.format(type(first).__name__, type(dataset).__name__))
        _names_further = False
        return None
    if store is None or not store.is_of(dataset):
        # TypeError of what cannot be known again, before it is tried: a list, say, which opens no files.
        reference = weakref.ref(dataset)
        wanted_bytes, most_bytes = int(os.environ[_VARIABLE]), budget.memory_bytes()
        # A rank may have less memory than its launcher.
        own_bytes = wanted_bytes if most_bytes is None else min(wanted_bytes, most_bytes)
        store = UnmodifiedStore(dataset, start_method_of(loader), own_bytes, "minio", 0)
        _of_job = reference, weakref.ref(store)
    _stores[loader] = store
    return store


class _Uses:
    """What becomes of an iterator's batches, for the figures and the knob of its cache."""

    def __init__(self, store, loader):
        self.store = store
        self.loader = weakref.ref(loader)
        # Drawn and not handed over. Of batches that are handed over in another order than drawn there is no curve.
        self.index = None
        self.drawn = deque()
        if getattr(loader, "in_order", True) and ranks.current()["world_size"] == 1:
            store.curve_for(loader, 1, 0)
        else:
            store.curve = None

    def begin(self):
        """An epoch of the loader, which has its number by now."""
        loader = self.loader()
        if loader is not None:
            self.store.begun(loader)

    def handed(self):
        self.index = self.drawn.popleft() if self.drawn else ()
        self.store.batch(self)


def drawing(next_index):
    """`next_index`, an iterator's method, where the cache hears of what it gives."""

    @passed_over
    def _next_index(self):
        index = next_index(self)
        uses = self.__dict__.get("_stallscope_cache")
        if uses is not None:
            uses.drawn.append(index)
        return index

    return _next_index


def handing(next_batch):
    """`next_batch`, an iterator's method, where the cache hears of the batches that it hands over."""

    @passed_over
    def __next__(self):
        data = next_batch(self)
        uses = self.__dict__.get("_stallscope_cache")
        if uses is not None:
            _heard(uses.handed)
        return data

    return __next__


def _show_refusal(loader):
    """Where nothing can be kept of the loader's data set, its knob says so and why."""
    store = _stores.get(loader)
    if store is not None and store.space is None:
        store.refused(loader)


def _heard(hear, *arguments):
    try:
        hear(*arguments)
    except Exception as error:
        if raised_by_signal(error):
            raise
        process.unavailable(f"The figures of the job's cache end: {type(error).__name__}: {error}.")


def again(iterator):
    """Its persistent workers begin another epoch."""
    uses = iterator.__dict__.get("_stallscope_cache")
    if uses is not None:
        uses.drawn.clear()
        _heard(uses.begin)
