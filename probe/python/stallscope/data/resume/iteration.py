"""One iteration of a loader: what of its epoch has been handed over, counted and digested."""

import contextlib
import itertools
import sys
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from time import monotonic_ns

from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope import _notices
from stallscope.data.seeding.per_sample import Batch

_LIGHTNINGS = frozenset(("lightning.pytorch", "pytorch_lightning"))
# How many wrappers an iterator of torch's may have.
_DEEPEST = 4
# Those under way that took a position up, of loaders that hear of steps.
_taken_up: "weakref.WeakSet" = weakref.WeakSet()


class End:
    """Of a pass: whether all of it was handed over, or the loop that iterates it beside others came to its end. Who holds it
    holds no worker."""

    reached = False
    # Whether a batch was handed over, and whether a step was trained with one.
    gave = trained = False
    # Those that were handed over when the last step was trained.
    batches = 0


class Pass:
    """One iteration: an epoch, or what is left of it."""

    def __init__(self, epoch, nth, generators, states, skip=0, expected=0):
        # Passes before it that trained, and all.
        self.epoch, self.nth = epoch, nth
        self.generators = generators
        # As they were when the pass began, and when its sampler was first asked, before which others may have drawn; where a
        # position is taken up, as the sampler is to find them.
        self.states, self.order_states, self.order_from = states, None, None
        # The digest that these have to have; None where nobody knows it.
        self.skip = skip
        self.expected = expected
        self.end = End()
        self.key = None
        self.repeats = None
        # Which may make whole batches by itself; None of one that does not.
        self.dataset = None
        self.batches = 0
        # Of these, those that were handed over when the last step was trained.
        self.batches_at_step = 0
        self.digest = 0
        self.waited_ns = 0
        self.sampled = deque()
        self.indices = None
        # Whether it is seen what is ahead of training.
        self.is_known = True
        self.workers_kept = False
        self.hears_steps = False
        self.before_order = None
        self.after_batch = None
        self.feed = None
        self.course = None
        # Where somebody says when a step was trained; and of a pass that took a position up, until it is asked.
        self.between = self.begun = None
        # The generators before the loop drew from them and began this pass, None where it did not draw; whether it drew behind that, before it asked.
        self.before, self.draws_within = None, False
        # The generators before we drew the seed of an order of ours; None with torch's.
        self.began = None
        # Batches that the sampler was asked for, with those that were skipped and with the end, and their digest.
        self.asked = self.asked_digest = 0
        # Where a position is taken up: what its sampler had been asked for, None where that is not known; the digest and the generators when it
        # has been asked for as many here.
        self.asked_before = self.digest_before = self.drawn_before = None
        # Whether the order was seen to be another one than before the checkpoint.
        self.is_other = False
        # Of the batch that was handed over last, and how many were asked for before its.
        self.index = None
        self.number = 0

    def takes_batches(self):
        """Whether the data set makes whole batches by itself. Asked only where it matters: it may open something for that, which workers that are forked
        later would share."""
        return callable(getattr(self.dataset, "__getitems__", None))

    def order_begins(self):
        """The sampler is about to be asked for the first time, which is when those of torch draw their order."""
        if self.order_from is not None:
            self.generators.set(self.order_from)
            self.generators.set_scalars(self.order_from.get("held", {}))
        # A script may set a sampler's epoch behind iter(), which counts if nothing was asked for before.
        self.order_states = {**self.generators.order_states(), "held": self.generators.scalars(self.states)}
        self._look()

    def was_asked(self, digest):
        """The sampler has given another batch, or come to its end; `digest`: of all that it gave."""
        self.asked += 1
        self.asked_digest = digest
        self._look()

    def _look(self):
        if self.asked == self.asked_before:
            self.digest_before, self.drawn_before = self.asked_digest, self.generators.order_states()

    def handed_over(self, number=None):
        """`number`: of the batch among those that were asked for; None: the last of them. Those between failed."""
        if not self.sampled:
            self.batches += 1
        while self.sampled and (number is None or self.number <= number):
            self.digest, self.index = self.sampled.popleft()
            self.number += 1
            self.batches += 1
        if self.course is not None:
            self.course.handed_over(self.batches - 1)

    def skipped(self, batches, digest):
        self.batches, self.digest = batches, digest
        if batches != self.skip or self.expected not in (digest, None):
            self.gives_other(self.skip)

    def gives_other(self, batches):
        """The first `batches` are not those from before the checkpoint."""
        if not self.is_other:
            self.is_other = True
            _notices.warn(
                f"The sampler does not give the same first {batches} batches as before the checkpoint; what follows is "
                "another order of samples. A sampler has to draw its order when it is iterated, from generators "
                "that the checkpoint has, or from its epoch.",
                2,
            )


class Counted:
    """A sampler whose batches are digested, and whose first ones are skipped."""

    def __init__(self, sampler, beginning, batched):
        self.sampler = sampler
        self.beginning = beginning
        self.batched = batched

    def __iter__(self):
        if self.beginning.before_order is not None:
            self.beginning.before_order()
        indices = iter(self.sampler)
        if self.beginning.feed is not None:
            indices = self.beginning.feed.over(indices)
        self.beginning.indices = Indices(indices, self.beginning, self.batched)
        return self.beginning.indices

    def __len__(self):
        return len(self.sampler)

    def left(self):
        """Batches that it gives."""
        return len(self.sampler) - self.beginning.skip


class Indices:
    """What a sampler gives. An iterator with workers begins it twice and takes the second, so nothing is drawn before
    it is asked for."""

    def __init__(self, indices, beginning, batched):
        self.indices = indices
        self.beginning = beginning
        self.batched = batched
        self.digest = 0
        self.to_skip = beginning.skip
        self.asked = self.ended = False
        # Of batches that the sampler was asked for and nobody has yet: the digest up to each, its index, and what the loader gets.
        self.waiting = deque()

    def __iter__(self):
        return self

    def __next__(self):
        if self.to_skip:
            self.skip()
        if not self.waiting:
            self._ask()
        digest, index, given = self.waiting.popleft()
        self.beginning.sampled.append((digest, index))
        key = self.beginning.key
        if key is None:
            return given
        uses = self.beginning.repeats.key
        if not self.batched:
            return uses(key, index), index
        if self._is_whole(given):
            return Batch(given, uses(key, repr(index)), repr(index))
        try:
            keyed = [(uses(key, one), one) for one in index]
        except TypeError:
            # No indices. The maker of the batch raises, as with torch.
            return index
        return tuple(keyed) if type(index) is tuple else keyed

    def _ask(self):
        try:
            index = given = next(self._begun())
        except StopIteration:
            # Which torch's samplers draw for, too.
            if not self.ended:
                self.ended = True
                self.beginning.was_asked(self.digest)
            raise
        if self._is_used_up(index):
            index = list(index)
            given = iter(index)
        self._add(index)
        if self.beginning.feed is not None:
            self.beginning.feed.gave(index)
        self.waiting.append((self.digest, index, given))

    def catch_up(self):
        """Asks the sampler for as many as before the checkpoint, when workers may have had more ahead: what it drew for them is drawn."""
        with contextlib.suppress(StopIteration):
            while not self.ended and self.beginning.asked < (self.beginning.asked_before or 0):
                self._ask()

    def _is_used_up(self, index):
        """Whether who looks at it takes it away from who makes its samples."""
        return self.batched and isinstance(index, Iterator)

    def _is_whole(self, index):
        """Whether it goes to the data set's `__getitems__` as it is: a slice or a tensor in place of a list of indices."""
        return self.batched and type(index) not in (list, tuple) and self.beginning.takes_batches()

    def skip(self):
        """Asks the sampler for what was handed over before the checkpoint."""
        to_skip, self.to_skip = self.to_skip, 0
        skipped = 0
        for given in itertools.islice(self._begun(), to_skip) if to_skip else ():
            index = list(given) if self._is_used_up(given) else given
            self._add(index)
            if self.beginning.key is not None:
                for one in (repr(index),) if self._is_whole(given) else index if self.batched else (index,):
                    self.beginning.repeats.key(0, one)
            skipped += 1
        if to_skip:
            self.beginning.skipped(skipped, self.digest)

    def _begun(self):
        if not self.asked:
            self.asked = True
            self.beginning.order_begins()
        return self.indices

    def _add(self, index):
        try:
            # Of an iterator: bytes are sample numbers, too.
            data = array("q", iter(index) if self.batched else (index,))
        except (TypeError, OverflowError):
            data = repr(index).encode()
        self.digest = zlib.crc32(data, self.digest)
        self.beginning.was_asked(self.digest)


def torchs_iterator(iterator):
    """torch's own within one that a subclass of the loader's wraps around it, as PyTorch Geometric's; None where it is not seen."""
    for _ in range(_DEEPEST):
        if iterator is None or isinstance(iterator, _BaseDataLoaderIter):
            break
        within = [one for one in getattr(iterator, "__dict__", {}).values() if isinstance(one, Iterator)]
        iterator = next((one for one in within if isinstance(one, _BaseDataLoaderIter)), within[0] if within else None)
    return iterator if isinstance(iterator, _BaseDataLoaderIter) else None


class Handing:
    """The iterator that a loop gets: counts what is handed over, and is gone when the loop is left."""

    def __init__(self, inner, current, took_up=False):
        self.inner = inner
        self.torchs = torchs_iterator(inner)
        self.current = current
        self.ended = False
        self.took_up = took_up
        if took_up:
            _taken_up.add(self)

    def __iter__(self):
        return self

    def __next__(self):
        began_ns = monotonic_ns()
        if self.current.between is not None:
            self._asked()
        if self.current.course is not None:
            self.current.course.asked()
        try:
            batch = next(self.inner)
        except StopIteration:
            self._end()
            raise
        self.current.end.gave = True
        self.current.waited_ns += monotonic_ns() - began_ns
        self.current.handed_over(self._number())
        if self.current.after_batch is not None:
            self.current.after_batch(self.current)
        if self.current.feed is not None:
            self.current.feed.go_on(self.current.number)
        return batch

    def _asked(self):
        current = self.current
        if not current.end.gave or current.between.after_step is not None:
            current.between.asked(current)
        if current.begun is not None:
            begun, current.begun = current.begun, None
            begun.asked()

    def _end(self):
        self.ended = self.current.end.reached = True
        if self.current.between is not None:
            self.current.between.ended()
            self.current.between.round_over |= self.took_up and not self.current.end.gave
        if self._is_of_lightnings_own():
            _notices.warn(
                "stallscope: the loader's position was behind the last batch of an epoch, which Lightning's own checkpoint counts as over, so that a Trainer may take what is "
                "left of it, nothing, for the next epoch, and leave that out: save at epochs' ends, or by stallscope.lightning.CheckpointCallback",
                4,
            )
        if self.current.hears_steps:
            # zip() ends with the first that has no more, and leaves the others before their ends.
            for other in list(_taken_up):
                other.current.end.reached = True

    def _is_of_lightnings_own(self):
        """Whether a position with nothing left was taken up, in a job of Lightning's in which nobody says when a step was trained."""
        is_over = self.current.batches and not self.current.end.gave
        return is_over and not self.current.hears_steps and not _LIGHTNINGS.isdisjoint(sys.modules)

    def _number(self):
        """Of the batch that came, among those that were asked for; None: it is the last of them."""
        if not getattr(self.torchs, "_in_order", True):
            return self.current.number
        received = getattr(self.torchs, "_rcvd_idx", None)
        return None if received is None else received - 1

    def __len__(self):
        return len(self.inner)

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)
