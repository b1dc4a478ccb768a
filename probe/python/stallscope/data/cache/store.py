"""A loader's cache as the training process has it: made at the first iteration, shown once a second, turned live."""

import multiprocessing
import sys
from time import monotonic_ns

from stallscope import _native, _notices
from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.prefetch import manager
from stallscope.data.prefetch.feed import Feed
from stallscope.data.prefetch.reader import KeptAhead

from . import packages as packing
from . import pool, split, split_parts, stored_form
from .keys import fingerprint
from .knobs import BytesKnob, FetchersKnob, number_of
from .makers import FromFiles, FromParts
from .membership import member_of
from .miss_curve import Curve, JointCurve
from .reader import Kept
from .statistics import PACKAGED, Collating, Tally

_SHOWN_EVERY_NS = 1_000_000_000
_LOOK_COSTS = 1000
_INSIDE = ("stallscope.", "torch.utils.data.")


class Store:
    """Of one loader and data set."""

    # Whether only files are kept, and what makes samples of these.
    of_files_alone = False
    of_files: type = FromFiles

    def __init__(self, dataset, start_method, budget_bytes, policy, fetchers=None, key=None, generation=0, in_packages=None):
        self.dataset = dataset
        # What the user asked for of packages, and these; and the part of the pool for what they bring is `staging`.
        self.in_packages, self.packages, self.package_bytes = in_packages, None, 0
        self.has_asked_for_packages = False
        # The user's key for the data set's state, and how often the user declared it changed.
        self.declared = key, generation
        # The state as it was looked at and as a glance shows it, how long the look took, and when.
        self.state, self.glance, self.state_ns, self.looked_ns = None, None, 0, 0
        self.length = _length(dataset)
        self.budget_bytes = budget_bytes
        self.policy = policy
        self.maker = self.space = self.tally = self.form = self.curve = self.key = None
        # Of the space; the data set may be a subset of what is kept there.
        self.samples = None
        # Who reads before samples are asked for, and where that waits.
        self.ahead = self.staging = None
        self.number = None
        # Whether each use of a sample looks at its file.
        self.looks = False
        self.look_at_ns = 0
        try:
            self._make(start_method, policy, fetchers)
        except (split.NoCut, pool.NoPool) as why:
            self._plain(str(why))
        except Exception as error:
            if raised_by_signal(error):
                raise
            self._plain(f"{type(error).__name__}: {error}")

    def _make(self, start_method, policy, fetchers):
        found = split.of(self.dataset, start_method, self.budget_bytes, self.of_files_alone)
        if found.in_parts:
            # Also where there is no pool, these two stand for its samples.
            self.maker = FromParts(self.dataset, found.samples, None, found.augments)
        if found.in_parts and self.declared[0] is None:
            self._look(found.base)
        key = fingerprint.of(found, self.state, *self.declared)
        self.form, key = stored_form.settled(found, key, self.budget_bytes)
        if not found.in_parts:
            key, self.looks = self._looks(found, key)
        own_bytes = self.budget_bytes
        if found.files > 1 and self.in_packages is not None:
            self.in_packages = None
            warn_about(self.dataset, "without packages: each of its samples opens several files")
        # Who reads ahead leaves a sample at its first file.
        if self.in_packages is not None or found.files == 1 and manager.can_be(start_method, fetchers):
            own_bytes -= self._staging_bytes(self.budget_bytes)
        self.key, self.samples = key, found.samples
        self.space = pool.space(key, found.samples, own_bytes, policy)
        self.tally = Tally()
        kept = Kept(self.form.over(self.space), self.tally, policy)
        if self.in_packages is not None:
            kept = self._in_packages(kept, key, found, policy)
        elif own_bytes < self.budget_bytes:
            kept = self._fetching(kept, key, found, policy, fetchers)
        if found.in_parts:
            self.maker.kept, self.maker.decoded = kept, self.form.decoded
            decoded = found.decoded["evidence"] if self.form.decoded else None
            self.maker.evidence = split_parts.Evidence(found.samples, found.evidence, decoded)
        else:
            self.maker = self.of_files(self.dataset, found.samples, kept, self.budget_bytes, self.looks, found.files)

    def _looks(self, found, key):
        """The key, and whether each use looks at its file: which is in what the pool knows a file by."""
        return key, fingerprint.looks_at_files(found, key)

    def _staging_bytes(self, budget_bytes):
        """What of the budget is for samples that wait for their draws."""
        if self.in_packages is not None:
            return self.in_packages.waiting_bytes(budget_bytes)
        return manager.staging_bytes(budget_bytes)

    def _in_packages(self, kept, key, found, policy):
        """`kept`, or what takes its place where samples may come in packages."""
        in_force_bytes = self.space.figures().get("capacity_bytes", 0)
        try:
            self.staging = packing.waiting_of(key, found.samples, self.budget_bytes, in_force_bytes, self.in_packages)
        except pool.NoPool as why:
            warn_about(self.dataset, f"without packages: {why}")
        if self.staging is None:
            return kept
        return packing.KeptInPackages(self.form.over(self.space), self.tally, policy, self.staging, found.samples)

    def open_packages(self, order):
        """The loader begins an epoch of these draws, which are settled."""
        if self.in_packages is None or self.staging is None or self.has_asked_for_packages or self.maker.kept is None:
            return
        self.has_asked_for_packages = True
        packages, run = packing.opened(self.in_packages, self.key, self.budget_bytes, order)
        if packages is None:
            return
        self.packages, self.package_bytes = packages, self.in_packages.package_bytes(self.budget_bytes)
        self.maker.kept.open(packages, run)
        packing.close_with(self, packages)

    def read_bytes_each(self):
        """The mean of the samples that were read from the source; 0 before any was."""
        totals = self.tally.totals()
        reads = totals["misses"] - totals["packaged"]
        return totals["source_bytes"] / reads if reads else 0

    def _fetching(self, kept, key, found, policy, fetchers):
        """`kept`, or what takes its place where samples may be fetched ahead."""
        in_force_bytes = self.space.figures().get("capacity_bytes", 0)
        try:
            self.staging = manager.staging_of(key, found.samples, self.budget_bytes, in_force_bytes)
            if self.staging is None:
                return kept
            self.ahead = manager.Ahead(
                self.dataset, found.samples, found.in_parts, self.looks, self.space, self.staging, self.tally, fetchers
            )
        except (pool.NoPool, OSError, ValueError) as error:
            if raised_by_signal(error):
                raise
            # The workers read by themselves.
            return kept
        return KeptAhead(self.form.over(self.space), self.tally, policy, self.staging, self.ahead.shared)

    def feed(self, safe, course, batched):
        """What hears of the samples of a pass that begins."""
        self.ahead.next_pass()
        return Feed(self.ahead, safe, course, batched)

    def _plain(self, why):
        self.space = None
        warn_plain(self.dataset, why)

    def is_of(self, dataset):
        """Whether it is of this data set as it is now. Each time a glance is taken at its state. Where that shows nothing new, to look
        at all of it has to cost less than a thousandth of the time since the last look."""
        if dataset is not self.dataset or _length(dataset) != self.length:
            return False
        if self.state is None:
            return True
        base = split.base_of(dataset)
        rests = monotonic_ns() - self.looked_ns < _LOOK_COSTS * self.state_ns
        if rests and fingerprint.glance_at(base) == self.glance:
            return True
        before = self.state
        self._look(base)
        return self.state == before

    def _look(self, base):
        # What changes in between shows in the next glance.
        self.glance = fingerprint.glance_at(base)
        began_ns = monotonic_ns()
        self.state = fingerprint.state_of(base)
        self.looked_ns = monotonic_ns()
        self.state_ns = self.looked_ns - began_ns

    def collating(self, users):
        """The loader's collate function, `users`, as its batches are to be collated."""
        return users if self.space is None else Collating(users, self.maker)

    def curve_for(self, loader, ranks, rank):
        """The miss-ratio curve; None where there is none."""
        if self.curve is None and self.space is not None:
            if ranks == 1:
                self.curve = Curve(self.policy, self.length, self.space, self.tally)
            else:
                # Each of several ranks sees a part of the uses of what they share.
                member = member_of(loader, self.key, self.samples, rank, ranks)
                self.curve = JointCurve(self.samples, self.space, self.tally, member, self.dataset)
        return self.curve

    def begun(self, loader):
        """The loader, which has this cache, begins an epoch."""
        if self.curve is not None:
            self.curve.epoch()
        number = number_of(loader) if self.space is not None else None
        if number is None or number == self.number:
            return
        self.number = self.tally.loader = number
        # Of a data set that others read already, the first one's.
        in_force = self._in_pool().get("capacity_bytes") or self.budget_bytes
        BytesKnob(self).show(number, in_force)
        if self.ahead is not None:
            FetchersKnob(self.ahead).show(number)

    def batch(self, handed):
        """A batch was handed over: `handed` has its index, or indices."""
        if self.space is None:
            return
        if self.curve is not None:
            self.curve.batch(handed.index)
        now_ns = monotonic_ns()
        if now_ns < self.look_at_ns:
            return
        self.look_at_ns = now_ns + _SHOWN_EVERY_NS
        in_pool = self._in_pool()
        _native.cache_state(
            loader=self.tally.loader,
            kept_bytes=in_pool.get("kept_bytes", 0), capacity_bytes=in_pool.get("capacity_bytes", 0),
            evictions=in_pool.get("evictions", 0), kept_samples=in_pool.get("kept_samples", 0),
        )  # fmt: skip
        if self.curve is not None:
            own = self.space.figures()
            self.curve.resize(own)
            if own.get("capacity_bytes"):
                self.curve.whole = in_pool["capacity_bytes"] / own["capacity_bytes"]
            self.curve.push()

    def figures(self):
        """What came of all uses so far, and what the pool has of the data set."""
        if self.space is None:
            return {}
        totals = self.tally.totals()
        if self.ahead is not None:
            totals["source_bytes"] += self.ahead.shared.totals()["bytes"]
        points = self.curve.points() if self.curve is not None else []
        if self.packages is None:
            totals = {name: count for name, count in totals.items() if name not in PACKAGED}
        looks = {} if isinstance(self.maker, FromParts) else {"looks_at_files": self.looks}
        return {**totals, **self._in_pool(), **self.form.figures(), **looks, "miss_ratio": points}

    def _in_pool(self):
        """What the pool holds. Bytes are those of the staging space, too; samples and evictions are not."""
        in_pool = self.space.figures()
        if self.staging is not None:
            staged = self.staging.figures()
            for name in ("capacity_bytes", "kept_bytes"):
                in_pool[name] = in_pool.get(name, 0) + staged.get(name, 0)
        return in_pool

    def resize(self, capacity_bytes):
        """Whether the pool may keep so many bytes of the data set from now on."""
        if self.space is None:
            return False
        parts = [(self.space, capacity_bytes)]
        if self.staging is not None:
            staged = self._staging_bytes(capacity_bytes)
            parts = [(self.space, capacity_bytes - staged), (self.staging, staged)]
        # The part that shrinks goes first, so that never both have more.
        parts.sort(key=lambda part: part[1] - part[0].figures().get("capacity_bytes", 0))
        if not all([space.resize(bytes_) for space, bytes_ in parts]):
            return False
        self.budget_bytes = capacity_bytes
        return True


def warn_plain(dataset, why):
    """Says why there is no cache, where the job iterates its loader."""
    warn_about(dataset, f"without its cache: {why}")


def warn_about(dataset, what):
    """Says what its loader goes on without."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    sentence = f"stallscope: the loader of {type(dataset).__name__} goes on {what}"
    _notices.warn(sentence, level)


def start_method_of(loader):
    """How the loader's workers are started; None where it has none."""
    if loader.num_workers == 0:
        return None
    context = loader.multiprocessing_context
    # Asking without allow_none would fix the default for the job.
    chosen = context.get_start_method() if context else multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _length(dataset):
    try:
        return len(dataset)
    except Exception as error:
        if raised_by_signal(error):
            raise
        return None
