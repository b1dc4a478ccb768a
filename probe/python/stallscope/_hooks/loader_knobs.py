"""The two knobs of a loader: how many batches are under way, and how many workers make them.

What somebody asked for holds for the loader's later epochs, too, until somebody asks for something else.
"""

import os
import sys
import weakref

from stallscope import _native

from . import headroom, knobs, order, process, resize
from .knobs import APPLIED, PENDING, REFUSED

_MOST_BATCHES = 1024

_IN_PROCESS = "The loader makes its batches in the training process: give it num_workers of 1 or more."
_UNKNOWN = "resize: unavailable: the loader's iterator is of class {}, which is not torch's own."
_STATEFUL = (
    "resize: unavailable: a StatefulDataLoader's state_dict holds its number of workers, and a job that starts from it "
    "again would fail with another one."
)
_SHARES = (
    "resize: unavailable: each of the persistent workers holds a share of the data set, which depends on how many "
    "there are."
)
_STREAM = (
    "resize: unavailable: the number of workers decides which samples an iterable data set gives; start the job with "
    "STALLSCOPE_DIVIDE_STREAMS=1 if its data sets divide themselves by get_worker_info()."
)
_UNEVEN = (
    "resize: unavailable: the number of workers decides how many batches an iterable data set gives, and the job's "
    "other ranks wait for as many."
)
_DRAWS = (
    "resize: unavailable: in mid-epoch the loader's sampler draws from generators that training may draw from, counts or takes calls, "
    "or memory changes that training and the data set share (or what cannot be compared may do so): asked earlier or later it may give "
    "other batches."
)
_WATCHED = (
    "It waits until the loader's order was watched for a whole epoch: a sampler that draws in mid-epoch, or memory that training and "
    "the data set share and that changes there, would make other batches of it."
)
_NEXT_BATCH = "It takes effect at the loader's next batch."
_NEXT_EPOCH = "It takes effect at the loader's next epoch."
_NEXT_SPLIT = "It takes effect at the loader's next epoch: an iterable data set is split anew between its workers."
_WEIGHING = "The next batch is measured first, to see how many fit in memory."
_STARTING = "New workers are starting."
_LEAVING = "Workers hand over their last batches."


def show(number, loader, iterator):
    """The knobs of a loader with this number, whose first iterator this is; None where it has none that turn."""
    if loader.num_workers == 0:
        _unavailable(number, 0, 0, _IN_PROCESS)
    elif not resize.is_known(iterator):
        reason = _unknown.get(type(iterator), _UNKNOWN.format(type(iterator).__name__))
        _unavailable(number, _script_depth(loader), loader.num_workers, reason)
    else:
        return Size(number, loader, iterator)
    return None


# Iterator class -> why it cannot be resized.
_unknown: dict = {}


def know(base, workers_module):
    """Iterators of class `base` are resized, or shown as what cannot be."""
    try:
        resize.know(base, workers_module)
    except Exception as error:
        _unknown[base] = f"resize: unavailable in this torch: {error}."


def _unavailable(number, depth, workers, reason):
    reason = process.text(reason)
    _native.knob_unavailable("prefetch", "batches", depth, number, reason)
    _native.knob_unavailable("workers", "workers", workers, number, reason)


def _script_depth(loader):
    return (loader.prefetch_factor or 0) * loader.num_workers


class Size:
    """What is wanted of one loader, over all its epochs; None: as the script has it."""

    def __init__(self, number, loader, iterator):
        self.depth = None
        # A depth that waits for a batch to be measured.
        self.asked_depth = None
        # Most that the headroom allowed when more was asked for.
        self.most_depth = None
        self.workers = None
        self.own_workers = loader.num_workers
        self.own_factor = loader.prefetch_factor
        self.context = loader.multiprocessing_context or sys.modules["torch.multiprocessing"]
        self.iterator = weakref.ref(iterator)
        self.order = order.of(loader)
        # An iterable data set is split between its workers, so that their number has to stay for an epoch.
        pipe = getattr(sys.modules["torch.utils.data.dataloader"], "MapDataPipe", ())
        self.split = loader._dataset_kind != 0 or isinstance(loader.dataset, pipe)
        own_depth = self.own_workers * self.own_factor
        most = max(_MOST_BATCHES, 2 * own_depth)
        self.depth_knob = knobs.register("prefetch", "batches", own_depth, 1, most, self._turn_depth, number)
        fixed = self._why_fixed(loader, iterator)
        self.workers_knob = None
        if fixed:
            _native.knob_unavailable("workers", "workers", self.own_workers, number, fixed)
        else:
            most = max(32, 4 * len(os.sched_getaffinity(0)), 2 * self.own_workers)
            self.workers_knob = knobs.register(
                "workers", "workers", self.own_workers, 1, most, self._turn_workers, number
            )

    def _why_fixed(self, loader, iterator):
        if resize.has_fixed_workers(iterator):
            return _STATEFUL
        if self.split and loader.persistent_workers:
            return _SHARES
        if self.split and process.ranks.current()["world_size"] > 1:
            return _UNEVEN
        # One that does not divide itself would give everything once for each worker.
        if self.split and os.environ.get("STALLSCOPE_DIVIDE_STREAMS", "") in ("", "0"):
            return _STREAM
        return ""

    def begin(self, loader, iterator):
        """`iterator` begins an epoch; it may be before it has any workers."""
        self.iterator = weakref.ref(iterator)
        self.own_workers, self.own_factor = loader.num_workers, loader.prefetch_factor
        self.context = loader.multiprocessing_context or sys.modules["torch.multiprocessing"]
        former, self.order = self.order, order.of(loader)
        self.order.succeeds(former)
        if self.workers is None and self.depth is None and self.asked_depth is None:
            return
        state, why = self._order_allows()
        if state == REFUSED:
            self._give_up(why)
        if state != APPLIED:
            return
        resize.touch(iterator, self)
        if "_workers" not in iterator.__dict__ and self.workers is not None:
            # Where it can be, more than the script's own come one by one later, as one that can't start would end
            # the job here.
            iterator._num_workers = self.workers if self.split else min(self.workers, self.own_workers)
            if iterator._num_workers == self.workers and self.workers_knob:
                self.workers_knob.is_now(self.workers)
        self._depth_follows(iterator)

    def _order_allows(self):
        """How a change stands by whether the order of samples may depend on it, and why."""
        if self.order.is_known or (self.order.was_watched and not self.order.draws_late):
            return APPLIED, ""
        if self.order.draws_late:
            return REFUSED, _DRAWS
        self.order.waiting = self._answer_in_mid_epoch
        return PENDING, _WATCHED

    def _answer_in_mid_epoch(self):
        """As if what waits were asked now."""
        depth, workers = self.asked_depth or self.depth, self.workers
        self.depth = self.asked_depth = self.workers = None
        for value, knob, turn in ((depth, self.depth_knob, self._turn_depth), (workers, self.workers_knob, self._turn_workers)):
            if value is None:
                continue
            try:
                knob.answer(*turn(value))
            except Exception as error:
                if knobs.raised_by_signal(error):
                    raise
                knob.failed(error)

    def _give_up(self, why):
        """The loader goes on as the script has it."""
        asked = self.depth is not None or self.asked_depth is not None, self.workers is not None
        self.depth = self.asked_depth = self.workers = None
        if asked[0]:
            self.depth_knob.answer(self.own_workers * self.own_factor, REFUSED, process.text(why))
        if asked[1] and self.workers_knob is not None:
            self.workers_knob.answer(self.own_workers, REFUSED, process.text(why))

    def gone(self):
        self.depth_knob.gone()
        if self.workers_knob is not None:
            self.workers_knob.gone()

    def wanted_workers(self):
        return self.own_workers if self.workers is None else self.workers

    def wanted_depth(self, iterator):
        """As torch has it, more workers mean a larger depth, until a request sets the depth itself; but not beyond the
        headroom."""
        if self.depth is not None:
            return self.depth
        depth = self.own_factor * iterator._num_workers
        return depth if self.most_depth is None else min(depth, self.most_depth)

    def depth_now(self, iterator):
        """The wanted depth, as far as there are workers for it. An epoch begins with the script's own, and what is meant for
        those who come would wait for them."""
        depth, workers = self.wanted_depth(iterator), iterator._num_workers
        share = -(-depth * workers // max(workers, self.wanted_workers()))
        return min(depth, max(share, self.own_factor * workers))

    def _running(self):
        iterator = self.iterator()
        return None if iterator is None or getattr(iterator, "_shutdown", True) else iterator

    def _turn_depth(self, value):
        iterator = self._running()
        state, why = self._order_allows()
        touched = iterator is not None and state == APPLIED
        in_force = self.wanted_depth(iterator) if touched else self.depth_knob.value
        if state == REFUSED:
            return in_force, REFUSED, process.text(why)
        self.asked_depth = None
        if value > max(in_force, self.own_workers * self.own_factor):
            self.asked_depth = value
        else:
            self.depth = value
        if not touched:
            return in_force, PENDING, why or _NEXT_EPOCH
        resize.touch(iterator, self)
        return (in_force, PENDING, _WEIGHING) if self.asked_depth else (value, APPLIED, "")

    def weigh(self, batch):
        """`batch` was just received, and a greater depth waits for it."""
        asked, self.asked_depth = self.asked_depth, None
        try:
            most, why = headroom.for_batches(batch)
        except Exception as error:
            if knobs.raised_by_signal(error):
                raise
            most, why = 0, f"the batch could not be measured: {type(error).__name__}: {error}"
        if asked <= most:
            self.depth, self.most_depth = asked, None
            self.depth_knob.answer(asked, APPLIED)
        else:
            self.most_depth = max(most, self.own_workers * self.own_factor)
            sentence = f"At most {most} batches fit: {why}."
            self.depth_knob.answer(self.depth_knob.value, REFUSED, process.text(sentence))

    def _turn_workers(self, value):
        iterator = self._running()
        in_force = self.workers_knob.value if iterator is None else iterator._num_workers
        state, why = self._order_allows()
        if state == REFUSED:
            return in_force, REFUSED, process.text(why)
        more = value - in_force
        if iterator is not None and more > 0:
            most, why = headroom.for_workers(iterator._workers[0].pid)
            if more > most:
                return in_force, REFUSED, f"At most {most} more workers fit: {why}."
        self.workers = value
        if iterator is None or state == PENDING:
            return in_force, PENDING, why or _NEXT_EPOCH
        if self.split:
            return (in_force, PENDING, _NEXT_SPLIT) if more else (in_force, APPLIED, "")
        resize.touch(iterator, self)
        return in_force, PENDING, _NEXT_BATCH

    def workers_are(self, iterator, in_force, starting):
        """How it stands with the workers that are wanted."""
        if self.workers is not None:
            reason = "" if in_force else _STARTING if starting else _LEAVING
            self.workers_knob.is_now(len(iterator._workers), reason)
        self._depth_follows(iterator)

    def workers_wait(self, iterator, reason):
        self.workers_knob.is_now(len(iterator._workers), reason)

    def workers_refused(self, iterator, reason):
        self.workers = len(iterator._workers)
        self.workers_knob.answer(self.workers, REFUSED, process.text(reason))
        self._depth_follows(iterator)

    def workers_fail(self, iterator, reason, lost=None):
        """Added workers fail: the loader goes on with as many as the script has. `lost`: the place of the first that is lost; where it is one of
        the script's own, whose worker has left, and workers stay for all epochs, nobody takes it any more."""
        self.workers = self.own_workers
        if lost is not None and iterator._persistent_workers:
            self.workers = min(lost, self.own_workers)
        self.workers_knob.answer(self.workers, REFUSED, process.text(reason))
        resize.touch(iterator, self)

    def _depth_follows(self, iterator):
        if self.asked_depth is None:
            self.depth_knob.is_now(self.wanted_depth(iterator))
