"""Where batches are made: in a worker's loop, or in the trainer itself without workers."""

import inspect
import weakref

from stallscope import _native

from . import in_process, process
from .patch import UnknownShape, attribute, replace

# In a worker: the data set it was started with, by its address, as the worker drops it before it ends; and the
# producer that its batches belong to.
_own_dataset = None
_own_producer = None

_map_fetcher = None
_iterable_fetcher = None
# The module of both, where what torch itself has written finds its names; and what makes them.
_torchs_globals = None
_kinds = _creates = None


def hook_loop(module):
    """Observes `module._worker_loop` from inside the worker, where it is looked up by name (spawn) or inherited."""
    loop = attribute(module, "_worker_loop")
    parameters = list(inspect.signature(loop).parameters)
    for name in ("index_queue", "data_queue", "worker_id"):
        if name not in parameters:
            raise UnknownShape(f"{loop.__module__}._worker_loop has no parameter {name}")

    def make(original):
        def _worker_loop(*args, **kwargs):
            args = _observed(parameters, args)
            try:
                return original(*args, **kwargs)
            finally:
                _forget()
                _native.bye()

        return _worker_loop

    replace(module, "_worker_loop", make)


def _forget():
    global _own_dataset, _own_producer
    _own_dataset = _own_producer = None


def _observed(parameters, args):
    """The loop's arguments with its queues observed; as they were when anything is unlike what is known."""
    global _own_dataset, _own_producer
    try:
        if not _native.enabled():
            return args
        named = dict(zip(parameters, args))
        producer = _native.Producer(named["worker_id"])
        process.tell_kind("worker")
        _native.poll()
        observed = {
            "index_queue": _native.IndexQueue(named["index_queue"], producer),
            "data_queue": _native.DataQueue(named["data_queue"], producer),
        }
        holder = named.get("dataset_holder")
        _own_dataset = id(holder[0] if holder else named.get("dataset"))
        _own_producer = producer
        return tuple(observed.get(name, value) for name, value in named.items()) + args[len(named) :]
    except Exception as error:
        process.disable(f"A worker could not be observed: {type(error).__name__}: {error}.")
        return args


def hook_fetchers(module):
    """`module`: torch.utils.data.dataloader."""
    global _map_fetcher, _iterable_fetcher, _torchs_globals, _kinds, _creates
    fetchers = [attribute(module._utils.fetch, name) for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher")]
    for fetcher in fetchers:
        parameters = list(inspect.signature(attribute(fetcher, "fetch")).parameters)
        if len(parameters) != 2:
            raise UnknownShape(f"{fetcher.__name__}.fetch takes {', '.join(parameters)}")
    _kinds = attribute(module, "_DatasetKind")
    replace(_kinds, "create_fetcher", _create_fetcher)
    _creates = vars(_kinds)["create_fetcher"]
    _map_fetcher, _iterable_fetcher = fetchers
    _torchs_globals = vars(module._utils.fetch)


def _create_fetcher(original):
    def create_fetcher(kind, dataset, *args, **kwargs):
        fetcher = original(kind, dataset, *args, **kwargs)
        # A loader that a worker's data set iterates has another data set.
        if _own_producer is not None and id(dataset) == _own_dataset:
            _observe_guarded(fetcher, _own_producer)
        return fetcher

    return create_fetcher


def _observe_guarded(fetcher, producer):
    try:
        if _is_known(fetcher):
            shadow = object.__new__(type(fetcher))
            shadow.__dict__.update(fetcher.__dict__)
            fetcher.fetch = _native.Fetch(weakref.ref(fetcher), shadow, producer, type(fetcher) is _iterable_fetcher)
    except Exception as error:
        process.unavailable(f"The times of single samples cannot be seen: {type(error).__name__}: {error}.")


def observe_own_fetcher(fetcher, producer):
    """The trainer makes its batches itself."""
    if _is_known(fetcher):
        in_process.observe(fetcher, producer, type(fetcher) is _iterable_fetcher)


def _is_known(fetcher):
    if _map_fetcher is None:
        return False
    known = type(fetcher) in (_map_fetcher, _iterable_fetcher) and _is_torchs(fetcher)
    if not known:
        whose = type(fetcher).__name__
        process.unavailable(f"The times of single samples cannot be seen in a {whose} whose `fetch` is the job's own.")
    return known


def _is_torchs(fetcher):
    """Whether torch's own code fetches. The job's may ask anything of its data set, and has to meet that and no stand-in."""
    of_fetcher = fetcher.__dict__.get("fetch")
    replaced = of_fetcher is not None and getattr(of_fetcher, "__globals__", None) is not vars(in_process)
    return not replaced and _is_by_torch(type(fetcher))


def _is_by_torch(kind):
    return getattr(kind.fetch, "__globals__", None) is _torchs_globals


def torch_fetches():
    """Whether data sets meet no fetcher of the job's own, as far as is known before one is made."""
    if _torchs_globals is None:
        return True
    replaced = _torchs_globals[_map_fetcher.__name__] is not _map_fetcher or vars(_kinds)["create_fetcher"] is not _creates
    return not replaced and _is_by_torch(_map_fetcher)
