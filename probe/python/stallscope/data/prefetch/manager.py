"""Reading samples before a worker asks for them: the fetchers of one loader, as the training process has them.

Fetchers are processes, and a fork server makes them. The uses to come go to them through one pipe, in order;
what they read waits in the staging space, a small part of the loader's budget, from which a worker takes it and offers
it to the data set's own. A failure of one costs no more than that samples are read by the workers, as without.
"""

import operator
import os
import sys
import weakref
from array import array
from collections import deque
from time import monotonic_ns

from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.cache import pool
from stallscope.data.cache.split import base_index, base_of

from . import fetcher, server, shared_memory
from .fetcher_groups import FetcherGroup, end
from .pipe import Pipe

# The staging space's part of a loader's budget.
_PART, _MOST_BYTES = 32, 256 << 20
# Of it so much is filled with what is still to be used: sizes differ.
_FILLED = 0.75
_LEAST_SAMPLES = 4
_LOOK_EVERY_NS = 100_000_000
_TELL_EVERY_NS = 1_000_000_000
# Reads after which it is looked at what came of them, and the share that has to be good for something.
_JUDGED, _GOOD = 256, 0.1
# A write of so many bytes is whole or not at all.
_PIPE_BUF = 4096

MOST_FETCHERS, MOST_WINDOW, WINDOW = shared_memory.MOST_FETCHERS, 1024, 8


def staging_bytes(budget_bytes):
    return min(budget_bytes // _PART, _MOST_BYTES)


def staging_of(key, samples, budget_bytes, in_force_bytes):
    """The staging space beside a data set's own, which has `in_force_bytes`; None where there can be none.

    The two together have the budget. A loader that finds another budget in force takes the staging space that is there,
    and makes none: the loader that set that budget may have none."""
    requested = staging_bytes(budget_bytes)
    if requested == 0:
        return None
    staging = pool.space(key + b" ahead", samples, requested, "lru")
    figures = staging.figures()
    is_new = figures.get("clients", 0) <= 1 and figures.get("capacity_bytes") == requested
    return None if is_new and in_force_bytes != budget_bytes - requested else staging


class Ahead:
    """`requested`: how many fetchers there are to be."""

    def __init__(self, dataset, samples, in_parts, looks, space, staging, tally, requested):
        self.owner = os.getpid()
        self.dataset = dataset
        self.samples = samples
        self.in_parts = in_parts
        self.looks = looks
        self.space = space
        self.staging = staging
        self.tally = tally
        self.shared = shared_memory.Shared(samples)
        self.requested = requested
        self.window = WINDOW
        self.stopped = ""
        self.turned = None
        self.init, self.workers, self.renewed, self.maker = None, 0, True, None
        self.has_begun = False
        self.unsent = deque()
        self.judged = {"reads": 0, "failed": 0, "prefetched": 0}
        self.reported_bytes = 0
        self.look_ns = self.tell_ns = 0
        self._headroom = None
        self.group = None
        # And those of earlier passes, whose fetchers end with the read under way: it may hold a lock of the data set's.
        self.groups = []
        self.pipe = Pipe()
        # By its maker alone: a child that loses it, too, is not to end any process.
        weakref.finalize(self, end, self.owner, self.shared, self.groups, self.pipe)

    def __reduce__(self):
        # A loader's copy, in another process or not, has no fetchers.
        return type(None), ()

    @property
    def is_on(self):
        return self.requested > 0

    def of_loader(self, loader, maker):
        """What fetchers have as the loader's workers have it."""
        self.maker = maker
        self.init, self.workers, self.renewed = loader.worker_init_fn, loader.num_workers, not loader.persistent_workers

    def next_pass(self):
        """Requests of earlier ones are void. Where workers are made anew, with the data set as it is by then,
        fetchers are as well."""
        self.shared.next_pass()
        self.shared.wanted = self.requested
        self.unsent.clear()
        self._reap()
        if not self.stopped and (self.renewed or not self.has_begun):
            self.has_begun = True
            self.shared.next_group()
            self._ring()
            begin = fetcher.Beginning(self.init, self.workers, self.dataset, self.maker)
            given = (base_of(self.dataset), self.in_parts, self.looks, self.space, self.staging, begin)
            self.group = FetcherGroup(self.owner, self.pipe, self.shared, given)
            self.groups.append(self.group)
        self._tell_bytes()

    def sample_of(self, index):
        """The number of a sample; None for what has none."""
        try:
            number = operator.index(base_index(self.dataset, index))
        except Exception as error:
            if raised_by_signal(error):
                raise
            return None
        return number if 0 <= number < self.samples else None

    def record(self, sample, before):
        return shared_memory.use_word(sample, self.shared.number, before)

    def tell(self, records):
        """Hands uses to the fetchers, as many as the pipe takes; the rest waits."""
        self.unsent.extend(records)
        while self.unsent:
            some = array("Q", [self.unsent[n] for n in range(min(len(self.unsent), _PIPE_BUF // 8))])
            if not self.pipe.write(some.tobytes()):
                return
            for _ in some:
                self.unsent.popleft()

    def headroom(self):
        """How many samples the staging space holds that are still to be used."""
        if self._headroom is None:
            counts, kept = self.shared.totals(), self.space.figures()
            if counts["reads"]:
                mean = counts["bytes"] / counts["reads"]
            elif kept.get("kept_samples"):
                mean = kept["kept_bytes"] / kept["kept_samples"]
            else:
                return 2 * self.requested
            # Ranks of a node share it.
            ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))
            free = int(_FILLED * self.staging.figures().get("capacity_bytes", 0) / max(1, mean) / ranks)
            # Each may put one there late, whose use is over.
            free -= self.requested
            self._headroom = free if free >= _LEAST_SAMPLES else 0
        return self._headroom

    def look(self):
        """Between two batches: looks after the fetchers, and tells what they read."""
        now_ns = monotonic_ns()
        if now_ns < self.look_ns:
            return
        self.look_ns = now_ns + _LOOK_EVERY_NS
        self._headroom = None
        self._reap()
        if self.requested and self._is_in_vain():
            self.stop("what they read is of no use")
        if now_ns >= self.tell_ns:
            self.tell_ns = now_ns + _TELL_EVERY_NS
            self._tell_bytes()

    def want(self, count):
        # Fetchers look at it by themselves.
        self.requested = self.shared.wanted = count
        self._ring()
        self.look_ns = 0

    def stop(self, why):
        """For good."""
        self.stopped = why
        self.requested = self.shared.wanted = 0
        self._ring()
        self.unsent.clear()
        if self.turned is not None:
            self.turned(0)

    def _ring(self):
        for group in self.groups:
            group.ring()

    def _reap(self):
        for group in [one for one in self.groups if one.is_gone()]:
            group.doorbell.close()
            self.groups.remove(group)
        if self.stopped:
            return
        if self.shared.deaths > server.MOST_DEATHS:
            self.stop("too many of them died")
        elif self.has_begun and not self.renewed and (self.group is None or not self.group.has_server()):
            # With workers that stay, training forks no more.
            self.stop("the process that makes them died")

    def _is_in_vain(self):
        """Whether hardly anything that was read lately was used, or hardly anything could be read."""
        now = {**self.shared.totals(), "prefetched": self.tally.totals()["prefetched"]}
        reads, failed, good = (now[name] - self.judged[name] for name in ("reads", "failed", "prefetched"))
        if reads + failed < _JUDGED:
            return False
        self.judged = {name: now[name] for name in self.judged}
        return good < _GOOD * (reads + failed)

    def _tell_bytes(self):
        read_bytes = self.shared.totals()["bytes"]
        if read_bytes > self.reported_bytes:
            self.tally.tell_source(read_bytes - self.reported_bytes)
            self.reported_bytes = read_bytes


def checked(fetchers):
    """The argument of a loader; ValueError."""
    if type(fetchers) is int and 0 <= fetchers <= MOST_FETCHERS:
        return fetchers
    raise ValueError(f"fetchers={fetchers!r}: give a whole number from 0 to {MOST_FETCHERS}")


def can_be(start_method, fetchers):
    """Whether a loader that is to have so many fetchers can have them."""
    return start_method == "fork" and fetchers > 0 and sys.platform.startswith("linux")
