"""The loaders of this process, numbered in order of first use."""

import multiprocessing
import os
import sys
import threading
import weakref

from stallscope import _native

from . import device, process, worker

_MAX_LOADERS = 65535

_grad_enabled = None
_known = []


class _Known:
    """A loader that has been iterated."""

    def __init__(self, loader, facts):
        self.reference = weakref.ref(loader)
        self.facts = facts
        self.epochs = 0


def prepare(grad_enabled):
    """`grad_enabled()` tells training from evaluation."""
    global _grad_enabled
    _grad_enabled = grad_enabled
    # A forked child that trains as well is a trainer of its own, with loaders of its own.
    os.register_at_fork(after_in_child=_known.clear)


def begin(iterator, loader):
    """`iterator` starts a new epoch of `loader`."""
    try:
        if not _native.observing():
            return
        previous = iterator.__dict__.get("_stallscope")
        if previous is not None:
            previous.end()
        number, known = _number(loader)
        iterator._stallscope = _native.Iteration(
            loader=number,
            epoch=known.epochs,
            in_process=loader.num_workers == 0,
            pinned=bool(getattr(iterator, "_pin_memory", False)),
            whole_batches=not loader._auto_collation,
            in_order=bool(getattr(loader, "in_order", True)),
            grad_enabled=_grad_enabled,
            observe_fetcher=worker.observe_own_fetcher,
        )
        known.epochs += 1
        device.look()
    except Exception as error:
        _native.disable(f"A loader could not be observed: {type(error).__name__}: {error}.")


def _number(loader):
    for number, known in enumerate(_known):
        if known.reference() is loader:
            return number, known
    if not _known:
        process.tell_kind("trainer")
    known = _Known(loader, _facts(loader))
    number = _successor_of(known)
    if number is None:
        number = min(len(_known), _MAX_LOADERS)
        _known[number:] = [known]
    else:
        known.epochs = _known[number].epochs
        _known[number] = known
    thread = threading.current_thread()
    process.tell(
        fact="loader",
        loader=number,
        tid=threading.get_native_id(),
        main_thread=thread is threading.main_thread(),
        **known.facts,
    )
    return number, known


def _successor_of(known):
    """A script may build the same loader anew for every epoch: it keeps its number."""
    for number, earlier in enumerate(_known):
        if earlier.reference() is None and earlier.facts == known.facts:
            return number
    return None


def _facts(loader):
    batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return {
        "workers": loader.num_workers,
        "batch_size": batch_size if isinstance(batch_size, int) else None,
        "prefetch_factor": loader.prefetch_factor if loader.num_workers else None,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "start_method": _start_method(loader) if loader.num_workers else "",
        "dataset": type(loader.dataset).__name__,
        "dataset_len": _length(loader.dataset),
    }


def _start_method(loader):
    context = loader.multiprocessing_context
    # Asking without allow_none would fix the default for the job.
    chosen = context.get_start_method() if context else multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _length(dataset):
    iterable = getattr(sys.modules.get("torch.utils.data.dataset"), "IterableDataset", ())
    if isinstance(dataset, iterable):
        return None
    try:
        return len(dataset)
    except Exception:
        return None
