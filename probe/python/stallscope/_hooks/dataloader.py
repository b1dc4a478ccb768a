"""DataLoader: who made which batch when, and how long the trainer waited for it.

Iterators are observed through their class, so that subclasses of DataLoader and of its iterators are seen as well.
"""

import inspect
import sys

from stallscope import _native

from . import job_cache, knobs, loader_knobs, loader_registry, opens, order, outline, process, resize, worker
from .patch import UnknownShape, attribute, replace


def hook_dataloader(module):
    """`module`: torch.utils.data.dataloader."""
    base = attribute(module, "_BaseDataLoaderIter")
    _expect_parameters(attribute(base, "__init__"), ["self", "loader"])
    _expect_parameters(attribute(base, "_reset"), ["self", "loader", "first_iter"])
    attribute(base, "__next__")
    grad_enabled = sys.modules["torch"].is_grad_enabled
    loader_registry.prepare(grad_enabled, _looks_on)
    replace(base, "__init__", _init)
    replace(base, "_reset", _reset)
    replace(base, "__next__", _next)
    if job_cache.is_on():
        _attempt("what the job's cache would keep", replace, attribute(module, "DataLoader"), "_get_iterator", job_cache.serving)
    _attempt("the number of samples in a batch", replace, base, "_next_index", _next_index)
    _attempt("which worker made a batch", hook_puts, attribute(module, "_MultiProcessingDataLoaderIter"))
    _attempt("when a loop is left early", hook_shutdown, attribute(module, "_MultiProcessingDataLoaderIter"))
    _attempt("what workers do", hook_worker_module, module._utils.worker)
    loader_knobs.know(attribute(module, "_MultiProcessingDataLoaderIter"), module._utils.worker)
    _attempt("the times of single samples", worker.hook_fetchers, module)
    _attempt("the time in opens and reads", opens.install)


def hook_stateful(module):
    """`module`: torchdata.stateful_dataloader.stateful_dataloader, whose iterators put indices and shut their workers down
    themselves."""
    iterator = attribute(module, "_StatefulMultiProcessingDataLoaderIter")
    _attempt("which worker made a batch", hook_puts, iterator)
    _attempt("when a loop is left early", hook_shutdown, iterator)
    loader_knobs.know(iterator, None)


def hook_worker_module(module):
    """`module` has a `_worker_loop`."""
    worker.hook_loop(module)


def hook_puts(iterator_class):
    source = inspect.getsource(attribute(iterator_class, "_try_put_index"))
    for name in ("_task_info", "_send_idx"):
        if name not in source:
            raise UnknownShape(f"{iterator_class.__name__}._try_put_index has no {name}")
    replace(iterator_class, "_try_put_index", _try_put_index)


def hook_shutdown(iterator_class):
    """An iterator that a `break` drops ends before its workers are shut down, which takes a while."""
    attribute(iterator_class, "_shutdown_workers")
    replace(iterator_class, "_shutdown_workers", _shutdown_workers)


def _looks_on():
    """Whether a mode of the job's would see us look at a tensor; that of a default device doesn't care."""
    native = sys.modules["torch"]._C
    length = getattr(native, "_len_torch_function_stack", None)
    modes = length() if length else 0
    return any(type(native._get_function_stack_at(n)).__name__ != "DeviceContext" for n in range(modes))


def _attempt(what, function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        if knobs.raised_by_signal(error):
            raise
        process.unavailable(f"In this torch {what} cannot be seen: {error}.")


def _expect_parameters(function, names):
    found = list(inspect.signature(function).parameters)
    if found[: len(names)] != names:
        raise UnknownShape(f"{function.__qualname__} takes {', '.join(found)}")


# The native functions below never raise but what a signal handler raised, and observe nothing once they are off.


def _init(original):
    def __init__(self, loader, *args, **kwargs):
        _watch_order(self, loader)
        job_cache.begin(self)
        original(self, loader, *args, **kwargs)
        loader_registry.begin(self, loader)
        order.end(self)

    return __init__


def _reset(original):
    def _reset(self, loader, first_iter=False, *args, **kwargs):
        if not first_iter:
            loader_registry.begin(self, loader)
            _watch_order(self, loader)
            job_cache.again(self)
        result = original(self, loader, first_iter, *args, **kwargs)
        if not first_iter:
            order.end(self)
        return result

    return _reset


def _next(original, turned=_native.turned, later=knobs.later, enter=_native.enter, leave=_native.leave, stop=_native.stop):
    if job_cache.is_on():
        original = job_cache.handing(original)

    def __next__(self):
        if turned() or later:
            knobs.take_up()
            resize.settle(self)
        observed = False
        # An interrupt may come before the answer of `enter` arrives: `stop` knows it.
        try:
            observed = enter(self)
            data = original(self)
            if observed:
                leave(self, data)
            return data
        except BaseException as error:
            stop(self, error)
            raise

    return __next__


def _watch_order(iterator, loader):
    try:
        order.begin(iterator, loader)
        # When its workers are made, which are the same for all epochs where they are persistent.
        if "_stallscope_outline" not in iterator.__dict__:
            iterator.__dict__["_stallscope_outline"] = outline.of_workers(loader.dataset, loader.collate_fn, loader.worker_init_fn)
    except Exception as error:
        if knobs.raised_by_signal(error):
            raise
        process.unavailable(f"A loader's order cannot be watched: {type(error).__name__}: {error}.")


def _next_index(original, next_index=_native.next_index, watch=order.watch):
    if job_cache.is_on():
        original = job_cache.drawing(original)

    # The sampler is called from here alone: a function of ours in between would be a frame more in the job's warnings.
    def _next_index(self):
        draw = watch(self)
        try:
            index = original(self)
        except StopIteration:
            order.ended(self)
            if draw is not None:
                draw.order.was_watched = draw.ended = True
            raise
        finally:
            if draw is not None:
                draw.over()
        next_index(self, index)
        return index

    return _next_index


def _try_put_index(original, sent=_native.sent):
    def _try_put_index(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        sent(self)
        return result

    return _try_put_index


def _shutdown_workers(original):
    def _shutdown_workers(self, *args, **kwargs):
        iteration = self.__dict__.get("_stallscope")
        if iteration is not None:
            iteration.end()
        return original(self, *args, **kwargs)

    return _shutdown_workers
