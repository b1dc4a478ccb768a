"""The loaders of this process, numbered in order of first use."""

import multiprocessing
import os
import sys
import threading
import weakref

from stallscope import _native

from . import device, evaluation, knobs, length, loader_knobs, outline, process, worker

_MAX_LOADERS = 65535
# From so many on a new loader takes the number of one that is gone.
_MANY_LOADERS = 64

_IN_A_THREAD = (
    "A loader is iterated by a thread beside the main one: its waits are not those of training; "
    "iterate the loader where the model is trained."
)

_grad_enabled = None
_looked_on = None
_known: list = []


class _Known:
    """A loader that has been iterated."""

    def __init__(self, loader, facts):
        self.reference = weakref.ref(loader)
        self.facts = facts
        self.epochs = 0
        self.shown = False
        # What can be turned, a `sizes.Size`; None where nothing can.
        self.size = None


def prepare(grad_enabled, looked_on):
    """`grad_enabled()` tells training from evaluation; `looked_on()` whether the job would see us look at a batch."""
    global _grad_enabled, _looked_on
    if _grad_enabled is None:
        # A forked child that trains as well is a trainer of its own, with loaders of its own.
        os.register_at_fork(after_in_child=_known.clear)
    _grad_enabled, _looked_on = grad_enabled, looked_on


def begin(iterator, loader):
    """`iterator` starts a new epoch of `loader`."""
    try:
        if not _native.observing():
            return
        if threading.current_thread() is not threading.main_thread():
            # Its waits are the thread's own, not those of the code that takes the batches from it.
            process.unavailable(_IN_A_THREAD)
            _native.withhold_steps()
            return
        previous = iterator.__dict__.get("_stallscope")
        if previous is not None:
            previous.end()
        # Torch pins nothing where there is no device, whatever the loader was made with.
        pinned = bool(getattr(iterator, "_pin_memory", False))
        number, known = _number(loader, pinned)
        iterator._stallscope = _native.Iteration(
            loader=number,
            epoch=known.epochs,
            in_process=loader.num_workers == 0,
            pinned=pinned,
            whole_batches=not loader._auto_collation,
            in_order=bool(getattr(loader, "in_order", True)),
            grad_enabled=_never if evaluation.under_way() else _grad_enabled,
            looked_on=_looked_on,
            observe_fetcher=worker.observe_own_fetcher,
        )
        known.epochs += 1
        _size(number, known, loader, iterator)
        device.look()
    except Exception as error:
        if knobs.raised_by_signal(error):
            raise
        process.disable(f"A loader could not be observed: {type(error).__name__}: {error}.")


def number_of(loader):
    """The number of a loader that has been iterated here; None for others."""
    for number, known in enumerate(_known):
        if known.reference() is loader:
            return number
    return None


def _size(number, known, loader, iterator):
    try:
        if not known.shown:
            known.shown = True
            known.size = loader_knobs.show(number, loader, iterator)
        if known.size is not None:
            known.size.begin(loader, iterator)
    except Exception as error:
        if knobs.raised_by_signal(error):
            raise
        process.unavailable(f"A loader's knobs cannot be turned: {type(error).__name__}: {error}.")


def _never():
    return False


def _number(loader, pinned):
    for number, known in enumerate(_known):
        if known.reference() is loader:
            return number, known
    if not _known:
        process.tell_kind("trainer")
    known = _Known(loader, _facts(loader, pinned))
    number = _successor_of(known)
    if number is None:
        number = min(len(_known), _MAX_LOADERS)
        _known[number:] = [known]
    else:
        former = _known[number]
        known.epochs = former.epochs
        if former.facts == known.facts:
            known.shown, known.size = former.shown, former.size
        elif former.size is not None:
            former.size.gone()
        _known[number] = known
    process.tell(fact="loader", loader=number, **known.facts)
    return number, known


def _successor_of(known):
    """A script may build the same loader anew for every epoch: it keeps its number. One that builds ever others
    gets the numbers of those that are gone."""
    gone = [number for number, earlier in enumerate(_known) if earlier.reference() is None]
    alike = [number for number in gone if _known[number].facts == known.facts]
    if len(_known) >= _MANY_LOADERS:
        alike += gone
    return alike[0] if alike else None


def _facts(loader, pinned):
    # As a plain attribute only: anything else would be code of the job's.
    sampled = getattr(loader.batch_sampler, "__dict__", {}).get("batch_size")
    return {
        "workers": int(loader.num_workers),
        "batch_size": _count(loader.batch_size or sampled),
        "prefetch_factor": _count(loader.prefetch_factor) if loader.num_workers else None,
        "pin_memory": pinned,
        "persistent_workers": bool(loader.persistent_workers),
        "start_method": _start_method(loader) if loader.num_workers else "",
        "dataset": type(outline.scripts_own(loader.dataset)).__name__,
        "dataset_len": _length(loader),
    }


def _count(value):
    """None for what cannot be a number of samples or batches."""
    return value if type(value) is int and 0 < value < 2**32 else None


def _start_method(loader):
    context = loader.multiprocessing_context
    # Asking without allow_none would fix the default for the job.
    chosen = context.get_start_method() if context else multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _length(loader):
    """Of a data set that is gone through as it is."""
    samplers = sys.modules["torch.utils.data.sampler"]
    sampler = loader.sampler
    if loader.batch_sampler is not None:
        if type(loader.batch_sampler) is not samplers.BatchSampler:
            return None
        sampler = loader.batch_sampler.sampler
    if type(sampler) not in (samplers.SequentialSampler, samplers.RandomSampler):
        return None
    return length.of(sampler.data_source)
