"""An iterator whose depth and workers may change while it runs.

torch puts one index for each batch that it hands over, so an iterator's depth stays what it was at the start. The
subclass puts none or several, until as many batches are under way as are wanted. An iterator becomes one of that
class when somebody first turns a knob of its loader, and not before.
"""

import inspect
import sys

from . import timeout
from .added_workers import WorkerSet
from .candidates import unknown_parameters
from .knobs import raised_by_signal
from .patch import UnknownShape, attribute, passed_over

# What the methods that the subclass builds on use of an iterator, in torch 1.13 to 2.15 and in torchdata. Methods that
# use more may keep books that the subclass would not keep.
_NAMES = frozenset(
    """
    _AckStartup _DatasetKind _IncrementalWorkerState _IterableDatasetStopIteration _ResumeIteration _WORKER_ID
    _dataset_kind _get_data _get_main_state _in_order _index_queues _last_yielded_worker_id _main_snapshots
    _mark_worker_as_unavailable _next_index _num_workers _num_yielded _persistent_workers _prefetch_factor
    _process_data _rcvd_idx _reset _sampler_iter_yielded _send_idx _shared_seed _shutdown _shutdown_workers
    _snapshot_interval _take_snapshot _task_info _tasks_outstanding _try_put_index _update_snapshot
    _update_worker_snapshot _utils _worker_key _worker_queue_idx_cycle _worker_snapshots _workers_num_tasks
    _workers_status
    """.split()
)
_ALL = 1 << 62
_METHODS = ("_try_put_index", "_process_data", "_next_data", "_reset")

# Iterator class -> (its resizable subclass, the module that has its workers' loop or None where they stay).
_known: dict = {}
_stop = ()


def know(base, workers_module):
    """Iterators of class `base` can be resized from now on, or UnknownShape. Their workers, too, where
    `workers_module` has their loop; None: they stay as they are."""
    global _stop
    for name in _METHODS:
        used = {name for name in inspect.unwrap(attribute(base, name)).__code__.co_names if name.startswith("_")}
        if not used <= _NAMES:
            raise UnknownShape(f"{name} of {base.__name__} uses {', '.join(sorted(used - _NAMES))}")
    attribute(base, "_shutdown_workers")
    attribute(base, "_try_get_data")
    if workers_module is not None:
        unknown = unknown_parameters(workers_module)
        if unknown:
            raise UnknownShape(f"a worker takes {', '.join(unknown)}")
    _stop = sys.modules["torch.utils.data._utils.worker"]._IterableDatasetStopIteration
    _known[base] = (_resizable(base), workers_module)


def is_known(iterator):
    return type(iterator) in _known or _worker_set(iterator) is not None


def has_fixed_workers(iterator):
    return type(iterator) in _known and _known[type(iterator)][1] is None


def touch(iterator, size):
    """From now on `iterator` is of the size that `size` says."""
    if _worker_set(iterator) is None:
        resizable, workers_module = _known[type(iterator)]
        iterator._stallscope_workers_added = WorkerSet(size, workers_module)
        iterator.__class__ = resizable
    _worker_set(iterator).settled = False


def settle(iterator):
    """Before a batch is asked for: adds and takes away workers, where that is wanted."""
    worker_set = _worker_set(iterator)
    if worker_set is not None:
        worker_set.settle(iterator)


def _worker_set(iterator):
    return iterator.__dict__.get("_stallscope_workers_added")


def _resizable(base):
    class Resizable(base):
        def _try_put_index(self):
            worker_set = self._stallscope_workers_added
            worker_set.begin(self)
            wanted = worker_set.size.depth_now(self)
            own, end = worker_set.end_of_order(self)
            if worker_set.raised is not None:
                self._raise_as_asked(own)
                return
            if end is not None and self._send_idx - _under_way(self, _ALL) + own > end:
                # As deep as without us, so that the end is drawn when it would be.
                wanted, end = own, None
            while _under_way(self, wanted) < wanted and (end is None or self._send_idx < end):
                sent, is_ahead = self._send_idx, _under_way(self, own) >= own
                self._prefetch_factor = _factor_for(self, wanted)
                try:
                    super()._try_put_index()
                except Exception as error:
                    if not is_ahead or raised_by_signal(error):
                        raise
                    worker_set.raised = error
                    break
                if self._send_idx == sent:
                    break
                worker_set.again.sent(self, sent)

        def _raise_as_asked(self, own):
            """What the sampler has raised, once as few batches are under way as when the script would have asked it."""
            if _under_way(self, own) < own:
                raised, self._stallscope_workers_added.raised = self._stallscope_workers_added.raised, None
                try:
                    raise raised
                finally:
                    # Its traceback has this frame and with it the iterator, which would be left to the garbage collector: in
                    # workers, too, that are forked before.
                    del raised

        @passed_over
        def _next_index(self):
            index = self._stallscope_workers_added.again.drawn = super()._next_index()
            return index

        def _get_data(self):
            worker_set = self._stallscope_workers_added
            while True:
                number, data = super()._get_data()
                if worker_set.again.has_come(self, number):
                    continue
                worker_set.unproven.handed_over(self, number)
                if not worker_set.again.is_asked(self, number, data):
                    return number, data

        def _try_get_data(self, *args, **kwargs):
            worker_set, get = self._stallscope_workers_added, super()._try_get_data

            def try_get(*args, **kwargs):
                if not worker_set.unproven.waiting:
                    return get(*args, **kwargs)
                return worker_set.unproven.try_get(self, get, *args, **kwargs)

            if self._timeout > 0 and args == (self._timeout,):
                return timeout.try_get(worker_set, self, try_get, *args)
            return try_get(*args, **kwargs)

        def _next_data(self):
            worker_set = self._stallscope_workers_added
            worker_set.settle(self)
            data = super()._next_data()
            if worker_set.size.asked_depth is not None:
                worker_set.size.weigh(data)
            return data

        def _reset(self, loader, first_iter=False, *args, **kwargs):
            if not first_iter:
                self._stallscope_workers_added.gather(self)
            super()._reset(loader, first_iter, *args, **kwargs)

        def _shutdown_workers(self):
            try:
                super()._shutdown_workers()
            finally:
                # An interrupt of torch's part must not leave ours out; and torch does nothing while the interpreter ends.
                if self._shutdown:
                    self._stallscope_workers_added.end()

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Resizable, name, getattr(base, name))
    return Resizable


def _under_way(iterator, enough):
    """Batches that were asked for and not handed over. What was asked of a worker whose stream has ended never
    comes, and must not stand in the way of what does."""
    tasks = iterator._task_info
    if len(tasks) < enough or all(iterator._workers_status):
        return len(tasks)
    return sum(_comes(iterator, info) for info in tasks.values())


def _comes(iterator, info):
    if len(info) == 1:
        return iterator._workers_status[info[0]]
    data = info[1]
    # StatefulDataLoader keeps the end of a stream like a batch, until it is its turn.
    return not isinstance(data[0] if type(data) is tuple and data else data, _stop)


def _factor_for(iterator, wanted):
    """A factor with which torch lets another index through. Out of order it also keeps each worker's batches below
    an equal share of all, of those who are about to leave too, and would lose an index that finds no worker."""
    workers = iterator._num_workers
    share = -(-wanted // workers) * max(workers, sum(iterator._workers_status))
    return -(-max(share, iterator._tasks_outstanding + 1) // workers)
