"""The worker processes of a running iterator: some more, some fewer, between two batches and without waiting.

A worker that is added is a candidate first: it gets no batch, and torch's guard over dead workers does not know it,
until it reports that it is ready. So one that cannot start costs nothing. A worker that is taken away is the last
one; it gets no further batch, and leaves when its last one has been handed over: until then its tensors live in it.

An interrupt may come between any two statements. So a process stands in its new place before it leaves the old one: there is
always a place from which it is ended.
"""

import atexit
import itertools
import sys
import threading
import time
import weakref

from stallscope import _native

from . import candidates, devices, importable, one_taker, order, outline
from .again import Again
from .knobs import raised_by_signal
from .unproven import Unproven

_SIGNALS = "torch.utils.data._utils.signal_handling"
# How long torch waits for a worker at the end.
_LEAVING_S = 5

_FOR_GOOD = (
    "resize: unavailable: the script has changed the data set since its persistent workers were made, or something else that a "
    "worker has of it, and a new one would have that otherwise than they have it."
)
_SO_MANY = (
    "resize: unavailable: as each worker begins, worker_init_fn uses {}, by which processes wait for one another or take what is meant for as many as the script has: "
    "with more workers some would wait for ever."
)
_UNTIL_NEXT_EPOCH = (
    "It takes effect at the loader's next epoch: the script has changed the data set since this one's workers were made, or "
    "something else that a worker has of it, and a new one would have that otherwise."
)


class WorkerSet:
    """Of one iterator, for `size`, which says how many workers are wanted and hears what becomes of it."""

    def __init__(self, size, workers_module):
        self.size = size
        self.workers_module = workers_module
        # Whether all is as wanted and nobody is on the way.
        self.settled = False
        # Whether a new epoch is about to ask for its first batches.
        self.beginning = False
        self.candidates = []
        # The depth that the script gave, and the first index of the end of this epoch's order, once it is known: see order.py.
        self.ends = None
        # Processes that end, with their queues: workers, and candidates that are not wanted any more.
        self.leaving = []
        self.dismissed = []
        # Batches of added workers, which one of the script's own makes as well where they fail.
        self.again = Again(size)
        self.unproven = Unproven(size, self.again)
        # What the sampler raised that was asked further ahead than the script would: to be raised when the script would have asked.
        self.raised = None

    def settle(self, iterator):
        """Brings the workers nearer to what is wanted. Only in the main thread, between two batches."""
        if self.settled or iterator._shutdown or self.workers_module is None or self.size.split:
            return
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            self._settle(iterator)
        except Exception as error:
            if raised_by_signal(error):
                raise
            self.give_up(iterator, f"The workers could not be changed: {type(error).__name__}: {error}.")

    def gather(self, iterator):
        """A new epoch of the same workers: a worker that was about to leave stays until torch has had all of
        them drop the work of the epoch before."""
        self.unproven.forget(iterator)
        iterator._num_workers = len(iterator._workers)
        self.settled = False
        self.beginning = True
        self.ends = self.raised = None
        self.again.forget()

    def end_of_order(self, iterator):
        """The depth that the script gave, and the first index with which the epoch's end may be drawn; None where it does not matter when."""
        if self.ends is None:
            self.ends = self.size.own_factor * self.size.own_workers, order.end(iterator)
        return self.ends

    def begin(self, iterator):
        """The first batches of a new epoch are to be asked for: no worker has work, so those that are to leave do."""
        if self.beginning:
            self.beginning = self.unproven.is_resuming = False
            self.settle(iterator)

    def end(self):
        """The iterator has shut its workers down. An interrupt in the midst of it leaves no process behind."""
        try:
            self._end()
        except BaseException:
            self._end()
            raise

    def _end(self):
        self._dismiss(0)
        deadline_s = time.monotonic() + _LEAVING_S
        for process, queue in [*self.leaving, *self.dismissed]:
            process.join(max(0, deadline_s - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(_LEAVING_S)
            _close(queue)
        self.leaving.clear()
        self.dismissed.clear()

    def _settle(self, iterator):
        wanted = self.size.wanted_workers()
        changed = self._see_off()
        self._dismiss(max(0, wanted - len(iterator._workers)))
        if iterator._num_workers != min(wanted, len(iterator._workers)):
            self._share_out(iterator, min(wanted, len(iterator._workers)))
        lacks = len(iterator._workers) + len(self.candidates) < wanted
        why_one = one_taker.why(iterator) if lacks and self.size.own_workers == 1 else ""
        why_not = why_one or (_why_so_many(iterator) or devices.why(iterator) if lacks else "")
        if why_not:
            self.give_up(iterator, why_not)
            wanted, lacks = self.size.wanted_workers(), False
        if lacks and not importable.by_workers(self.size.context.get_start_method()):
            self.give_up(iterator, f"resize: unavailable: {importable.NOT_FOUND}.")
            wanted, lacks = self.size.wanted_workers(), False
        waits = lacks and _made_with(iterator) != iterator.__dict__.get("_stallscope_outline")
        if waits and iterator._persistent_workers:
            self.give_up(iterator, _FOR_GOOD)
        while not waits and len(iterator._workers) + len(self.candidates) < wanted:
            number = len(iterator._workers) + len(self.candidates)
            candidates.start(self.candidates, self.size.context, self.workers_module, iterator, number, wanted)
        changed |= self._let_go(iterator)
        changed |= self._take_on(iterator)
        if changed or self.unproven.has_proven:
            self._register(iterator)
        if changed:
            _native.workers_changed(iterator)
        in_force = iterator._num_workers == len(iterator._workers) == self.size.wanted_workers()
        self.settled = in_force and not (self.candidates or self.leaving or self.dismissed or self.unproven.waiting)
        self.size.workers_are(iterator, in_force, starting=len(self.candidates))
        if waits and not iterator._persistent_workers:
            # Who is on the way is taken on; the rest come with the next epoch's.
            self.settled = not (self.candidates or self.leaving or self.dismissed)
            self.size.workers_wait(iterator, _UNTIL_NEXT_EPOCH)

    def give_up(self, iterator, reason):
        """Stays with those who are there. Where none was to leave, it goes on with whose turn it is: which of them makes a batch decides what that
        is drawn from."""
        self._dismiss(0)
        if iterator._num_workers != len(iterator._workers):
            self._share_out(iterator, len(iterator._workers))
        self.settled = not (self.leaving or self.dismissed)
        self.size.workers_refused(iterator, reason)

    def _share_out(self, iterator, count):
        """Further batches go to the first `count` workers, the last of them first, as it has the least to do."""
        iterator._num_workers = count
        iterator._worker_queue_idx_cycle = itertools.cycle([count - 1, *range(count - 1)])

    def _take_on(self, iterator):
        """Candidates that are ready become workers, in the order of their numbers."""
        changed = False
        while self.candidates and len(iterator._workers) == iterator._num_workers:
            report = self.candidates[0].says()
            if report is None:
                break
            if report:
                self.give_up(iterator, report)
                break
            candidate = self.candidates[0]
            candidate.reports.close()
            iterator._index_queues.append(candidate.queue)
            iterator._workers_status.append(True)
            if hasattr(iterator, "_workers_num_tasks"):
                iterator._workers_num_tasks.append(0)
            self.again.added.add(candidate.process)
            # The last: a shutdown counts these.
            iterator._workers.append(candidate.process)
            self.unproven.waiting.append(candidate.process)
            self.candidates.pop(0)
            self._share_out(iterator, len(iterator._workers))
            _end_before_exit(iterator, candidate.process)
            changed = True
        return changed

    def _let_go(self, iterator):
        """Workers that get no further batches, and have handed over all they made, leave."""
        changed = False
        while len(iterator._workers) > iterator._num_workers:
            last = len(iterator._workers) - 1
            if any(info[0] == last for info in iterator._task_info.values()):
                break
            queue = iterator._index_queues[last]
            self.leaving.append((iterator._workers[last], queue))
            self.unproven.leaves(iterator._workers[last])
            self.again.added.discard(iterator._workers[last])
            iterator._workers.pop()
            iterator._index_queues.pop()
            iterator._workers_status.pop()
            if hasattr(iterator, "_workers_num_tasks"):
                iterator._workers_num_tasks.pop()
            queue.put(candidates.Leave())
            changed = True
        return changed

    def _dismiss(self, all_but):
        """Sends all but so many candidates away, who hold nothing that others need."""
        while len(self.candidates) > all_but:
            candidate = self.candidates[-1]
            self.dismissed.append((candidate.process, candidate.queue))
            self.candidates.pop()
            candidate.send_away()

    def _see_off(self):
        """Forgets who has ended; whether torch's guard knows one of them."""
        before = len(self.leaving)
        self.leaving = [left for left in self.leaving if not _has_ended(*left)]
        self.dismissed = [left for left in self.dismissed if not _has_ended(*left)]
        return len(self.leaving) < before

    def _register(self, iterator):
        """Tells torch's guard over dead workers who they are; one that leaves is under guard until it is gone."""
        signals = sys.modules[_SIGNALS]
        self.unproven.has_proven = False
        others = {*self.unproven.waiting, *self.unproven.lost}
        pids = tuple(process.pid for process in [*iterator._workers, *(left for left, _ in self.leaving)] if process not in others)
        if iterator._worker_pids_set:
            signals._remove_worker_pids(id(iterator))
            iterator._worker_pids_set = False
        signals._set_worker_pids(id(iterator), pids)
        iterator._worker_pids_set = True


def _why_so_many(iterator):
    """Why the script may know how many workers there are, a sentence; "" where nothing shows that it does."""
    met = outline.meetings(iterator._worker_init_fn)
    return _SO_MANY.format(met[0]) if met else ""


def _made_with(iterator):
    """What a worker that is made now would be made with."""
    return outline.of_workers(iterator._dataset, iterator._collate_fn, iterator._worker_init_fn)


def _end_before_exit(iterator, process):
    """Where torch has persistent workers end before the pin-memory thread does, this one does as well."""
    clean_up = getattr(type(iterator), "_clean_up_worker", None)
    if clean_up is None or not (iterator._persistent_workers and iterator._pin_memory):
        return
    reference = weakref.ref(process)

    def clean():
        if reference() is not None:
            clean_up(reference())

    atexit.register(clean)


def _has_ended(process, queue):
    if process.is_alive():
        return False
    _close(queue)
    return True


def _close(queue):
    queue.cancel_join_thread()
    queue.close()
