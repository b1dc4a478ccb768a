"""A loader's exact position: which batches of which epoch have been handed over.

The order of samples comes from the random generators as they were when the epoch began. So a position is those states,
the number of batches handed over, and a digest of their indices. To take it up, the epoch begins again with the same
states, and the sampler is asked for what was handed over before, which reads no sample.
"""

import itertools
import threading
import warnings
import weakref
import zlib
from array import array
from collections import deque
from time import monotonic_ns

import torch.utils.data

from stallscope import _random

from . import sampling_course, sampling_order
from .draws import Repeats
from .keyed import epoch_key

_VERSION = 1


class Positioned(torch.utils.data.DataLoader):
    """A DataLoader that tells its position and takes one up. A loader may be given this class when it is there already."""

    _epochs = 0
    _pass = None
    _resume = None
    _beginning = None
    # Where we draw the samples ourselves.
    _order = None

    def __iter__(self):
        resume, self._resume = self._resume, None
        if resume is None:
            beginning = _Pass(self._epochs, self._order_states())
            if self._order is not None:
                beginning.course = self._next_course()
            return self._begin(beginning)
        now = _random.capture()
        beginning = _Pass(resume["epoch"], resume["states"], resume["batches"], resume["digest"])
        if self._order is not None:
            # Knows by itself where it is.
            beginning.course, beginning.skip, beginning.batches = self._order.begin_again(), 0, resume["batches"]
        self._set_states(beginning.states)
        if resume["workers_kept"]:
            # Making workers draws a seed, which the pass that is taken up did not.
            beginning.before_order = lambda: self._set_states(beginning.states)
        try:
            return self._begin(beginning)
        finally:
            _random.restore(resume.get("process") or now)

    def _begin(self, beginning):
        self._epochs = beginning.epoch + 1
        if self._keys_samples():
            order = beginning.states.get("generator") or beginning.states["process"]["torch"]
            beginning.key = epoch_key(order, beginning.epoch)
            beginning.repeats = Repeats(self._samples())
        persistent = getattr(self, "_iterator", None)
        beginning.workers_kept = persistent is not None or beginning.before_order is not None
        self._beginning = beginning
        try:
            if persistent is not None:
                # Its sampler was wrapped for the epoch in which it was made.
                persistent._index_sampler = self._index_sampler
            inner = super().__iter__()
        finally:
            self._beginning = None
        if self._streams():
            for _ in itertools.islice(inner, beginning.skip):
                beginning.handed_over()
        elif beginning.indices is not None:
            # With workers it has happened already, for what they make ahead.
            beginning.indices.skip()
        # No cycle may hold workers: it would be collected in whatever process happens to.
        beginning.indices = beginning.before_order = None
        beginning.after_batch = self._after_batch()
        if beginning.feed is not None:
            beginning.feed.go_on(0)
        handing = _Handing(inner, beginning)
        self._pass = weakref.ref(handing)
        return handing

    @property
    def _index_sampler(self):
        sampler = super()._index_sampler
        beginning = self._beginning
        if beginning is not None and beginning.course is not None:
            sampler = beginning.course if self._auto_collation else sampling_course.Singly(beginning.course)
        if beginning is None or self._streams():
            return sampler
        beginning.feed = self._feed(beginning.course)
        return _Counted(sampler, beginning, self._auto_collation)

    def _next_course(self):
        older = self._pass() if self._pass is not None else None
        if older is not None and not older.ended and older.current.course is not None:
            # What is left of it is its own.
            older.current.course.keep()
        return self._order.begin(self._share_of_cache)

    def _share_of_cache(self):
        """The share of the samples that a cache holds; None without."""
        return None

    def _after_batch(self):
        """What is to be called with its pass when a batch was handed over, if anything is; holds no loader."""
        return None

    def _feed(self, course):
        """What is to hear of the samples of a pass before workers ask for them, if anything is; holds no loader."""
        return None

    def _keys_samples(self):
        """Whether random augmentation belongs to the sample here."""
        return False

    def _streams(self):
        """Whether samples have no index."""
        return isinstance(self.dataset, torch.utils.data.IterableDataset)

    def _generators(self):
        sampler = getattr(self.batch_sampler, "sampler", self.sampler)
        found = {"generator": getattr(self, "generator", None), "sampler": getattr(sampler, "generator", None)}
        return {name: one for name, one in found.items() if isinstance(one, torch.Generator)}

    def _set_states(self, states):
        if "process" in states:
            _random.restore(states["process"])
        for name, generator in self._generators().items():
            if name in states:
                _random.set_generator(generator, states[name])

    def _order_states(self):
        states = {name: _random.generator_bytes(one) for name, one in self._generators().items()}
        return {"process": _random.capture(), **states}

    def state_dict(self):
        """Plain data: where the loader is. Within an epoch from its first batch until the loop over it is left, which
        is after the last batch when it runs to its end."""
        if self._resume is not None:
            # Loaded, and not begun yet.
            return {name: value for name, value in self._resume.items() if name != "process"}
        handing = self._pass() if self._pass is not None else None
        state = {"version": _VERSION, "samples": self._samples(), "batch_size": self.batch_size}
        if self._order is not None:
            state["sampling"] = self._order.state()
        sampler = self._epoch_sampler()
        if sampler is not None:
            state["sampler_epoch"] = sampler.epoch
        if handing is None or handing.ended:
            states = {name: _random.generator_bytes(one) for name, one in self._generators().items()}
            return {**state, "epoch": self._epochs, "batches": None, "digest": 0, "states": states}
        current = handing.current
        return {
            **state,
            "epoch": current.epoch,
            "batches": current.batches,
            "digest": current.digest,
            "states": current.states,
            "workers_kept": current.workers_kept,
        }

    def load_state_dict(self, state):
        """Takes the position up: the next iteration goes on from there. ValueError where it is of other data."""
        if state.get("version") != _VERSION:
            raise ValueError(f"the loader's position has version {state.get('version')}, this one reads {_VERSION}")
        for name, here in (("samples", self._samples()), ("batch_size", self.batch_size)):
            if state[name] != here:
                raise ValueError(f"the loader's position is of {state[name]} {name.replace('_', ' ')}, here are {here}")
        why = sampling_order.mismatch(self._order, state.get("sampling"))
        if why and state["batches"] is not None:
            raise ValueError(f"the loader's position within an epoch is {why}")
        if not why and self._order is not None:
            self._order.load(state["sampling"])
        sampler = self._epoch_sampler()
        if sampler is not None and "sampler_epoch" in state:
            sampler.set_epoch(state["sampler_epoch"])
        self._epochs = state["epoch"]
        self._pass = None
        if getattr(self, "_iterator", None) is not None:
            # Persistent workers that have batches of another position under way.
            self._iterator = None
        if state["batches"] is not None:
            self._resume = dict(state)
            return
        self._resume = None
        self._set_states(state["states"])

    def begin_with_epoch(self, epoch):
        """The next iteration is this epoch's, from its start."""
        self._epochs, self._pass, self._resume = epoch, None, None

    def take_waited_ns(self):
        """How long loops waited for batches since this was asked last."""
        handing = self._pass() if self._pass is not None else None
        if handing is None:
            return 0
        waited_ns, handing.current.waited_ns = handing.current.waited_ns, 0
        return waited_ns

    def go_on_with(self, process):
        """The generators' states once the position that was loaded is taken up."""
        if self._resume is not None:
            self._resume["process"] = process

    def _samples(self):
        if self._streams():
            return None
        try:
            return len(self.dataset)
        except TypeError:
            return None

    def _epoch_sampler(self):
        """The sampler that has to be told the epoch, as torch's DistributedSampler."""
        for sampler in (self.sampler, getattr(self.batch_sampler, "sampler", None), self.batch_sampler):
            if hasattr(sampler, "set_epoch") and isinstance(getattr(sampler, "epoch", None), int):
                return sampler
        return None


class _Pass:
    """One iteration: an epoch, or what is left of it."""

    def __init__(self, epoch, states, skip=0, expected=0):
        self.epoch = epoch
        self.states = states
        self.skip = skip
        self.expected = expected
        self.key = None
        self.repeats = None
        self.batches = 0
        self.digest = 0
        self.waited_ns = 0
        self.sampled = deque()
        self.indices = None
        self.workers_kept = False
        self.before_order = None
        self.after_batch = None
        self.feed = None
        self.course = None
        # Of the batch that was handed over last, and how many were asked for before its.
        self.index = None
        self.number = 0

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
        if (batches, digest) != (self.skip, self.expected):
            warnings.warn(
                f"The sampler does not give the same first {self.skip} batches as before the checkpoint; what follows is "
                "another order of samples. A sampler has to draw its order when it is iterated, from generators "
                "that the checkpoint has, or from its epoch.",
                RuntimeWarning,
                stacklevel=2,
            )


class _Counted:
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
        self.beginning.indices = _Indices(indices, self.beginning, self.batched)
        return self.beginning.indices

    def __len__(self):
        return len(self.sampler)


class _Indices:
    """What a sampler gives. An iterator with workers begins it twice and takes the second, so nothing is drawn before
    it is asked for."""

    def __init__(self, indices, beginning, batched):
        self.indices = indices
        self.beginning = beginning
        self.batched = batched
        self.digest = 0
        self.to_skip = beginning.skip

    def __iter__(self):
        return self

    def __next__(self):
        if self.to_skip:
            self.skip()
        index = next(self.indices)
        self._add(index)
        self.beginning.sampled.append((self.digest, index))
        if self.beginning.feed is not None:
            self.beginning.feed.gave(index)
        key = self.beginning.key
        if key is None:
            return index
        uses = self.beginning.repeats.key
        return [(uses(key, one), one) for one in index] if self.batched else (uses(key, index), index)

    def skip(self):
        """Asks the sampler for what was handed over before the checkpoint."""
        to_skip, self.to_skip = self.to_skip, 0
        skipped = 0
        for index in itertools.islice(self.indices, to_skip):
            self._add(index)
            if self.beginning.key is not None:
                for one in index if self.batched else (index,):
                    self.beginning.repeats.key(0, one)
            skipped += 1
        if to_skip:
            self.beginning.skipped(skipped, self.digest)

    def _add(self, index):
        try:
            data = array("q", index if self.batched else (index,))
        except (TypeError, OverflowError):
            data = repr(index).encode()
        self.digest = zlib.crc32(data, self.digest)


class _Handing:
    """The iterator that a loop gets: counts what is handed over, and is gone when the loop is left."""

    def __init__(self, inner, current):
        self.inner = inner
        self.current = current
        self.ended = False

    def __iter__(self):
        return self

    def __next__(self):
        began_ns = monotonic_ns()
        if self.current.course is not None:
            self.current.course.asked()
        try:
            batch = next(self.inner)
        except StopIteration:
            self.ended = True
            raise
        self.current.waited_ns += monotonic_ns() - began_ns
        self.current.handed_over(self._number())
        if self.current.after_batch is not None:
            self.current.after_batch(self.current)
        if self.current.feed is not None:
            self.current.feed.go_on(self.current.number)
        return batch

    def _number(self):
        """Of the batch that came, among those that were asked for; None: it is the last of them."""
        if not getattr(self.inner, "_in_order", True):
            return self.current.number
        received = getattr(self.inner, "_rcvd_idx", None)
        return None if received is None else received - 1

    def __len__(self):
        return len(self.inner)

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


_classes = {}
_classes_lock = threading.Lock()


def position(loader):
    """Gives `loader`, a DataLoader of torch's, what `Positioned` has; loaders with a state of their own keep it."""
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return loader
    kind = type(loader)
    if not isinstance(loader, torch.utils.data.DataLoader) or kind.__iter__ is not torch.utils.data.DataLoader.__iter__:
        raise TypeError(
            f"loader: the position of a {kind.__name__} is not known: it has no state_dict() and is no plain DataLoader; "
            "use stallscope.DataLoader or torchdata's StatefulDataLoader"
        )
    with _classes_lock:
        if kind not in _classes:
            # Named like the original, which others may show or compare.
            _classes[kind] = type(kind.__name__, (Positioned, kind), {"__module__": kind.__module__})
        loader.__class__ = _classes[kind]
    return loader
