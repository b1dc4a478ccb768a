"""What share of the uses a larger cache would miss, or a smaller one: fed with what is handed over to training."""

from stallscope import _native
from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.seeding.draws import drawn

from .split import base_index, base_of


class Curve:
    """Of one loader and data set."""

    # Whether its ids are those of the space, also where the loader has a subset of what is kept there.
    of_space = False

    def __init__(self, policy, samples, space, tally):
        self.ghost = _native.Ghost(policy, samples)
        self.space = space
        self.tally = tally
        self.is_sized = False
        # Whether other samples may be given than were drawn. The curve is of draws.
        self.of_drawn = False
        # The budget beside the part of it that is the data set's own space, which the curve is of.
        self.whole = 1.0

    def __reduce__(self):
        # A loader's copy begins its own.
        return type(None), ()

    def batch(self, index):
        """A batch was handed over, of this index, or of these."""
        if not self.is_sized:
            self.resize(self.space.figures())
        if type(index) is not list:
            index = list(index) if isinstance(index, tuple) else [index]
        if self.of_drawn:
            index = [drawn(one) for one in index]
        self._handed(index)

    def _handed(self, index):
        self.ghost.handed(index)

    def resize(self, state):
        """How large the cache is, by the pool's `state`. How large samples are, it knows of those that it keeps."""
        kept_bytes, kept = state.get("kept_bytes", 0), state.get("kept_samples", 0)
        if not kept:
            sums = self.tally.totals()
            kept = sum(sums[name] for name in ("hits", "substitutions", "misses"))
            kept_bytes = sums["pool_bytes"] + sums["source_bytes"]
        if kept_bytes and state.get("capacity_bytes"):
            self.ghost.size(state["capacity_bytes"], kept_bytes / kept)
            self.is_sized = True

    def epoch(self):
        self.ghost.epoch()

    def push(self):
        """Shows it where the shim is on."""
        self._push(self._whole(self.ghost.curve()), self.ghost.dataset_bytes, 1)

    def _push(self, points, dataset_bytes, ranks):
        _native.cache_curve(loader=self.tally.loader, ranks=ranks, dataset_bytes=dataset_bytes, points=points)

    def points(self):
        return _shares(self._whole(self.ghost.curve()))

    def _whole(self, points):
        return [(int(capacity * self.whole), uses, misses) for capacity, uses, misses in points]


class JointCurve(Curve):
    """Of all ranks that share a space of the pool: each sends its uses to the pool, and the pool has the one curve."""

    # Ranks may have different subsets.
    of_space = True

    def __init__(self, samples, space, tally, member, dataset):
        self.ghost = _native.Joint(
            space, member.loader, samples, member.epoch_uses, member.job, member.rank, member.ranks
        )
        self.dataset = dataset
        self.is_subset = base_of(dataset) is not dataset
        self.space = space
        self.tally = tally
        # The pool knows by itself.
        self.is_sized = True
        self.of_drawn = False
        self.whole = 1.0

    def _handed(self, index):
        self.ghost.handed(index, [self._id_of(one) for one in index] if self.is_subset else None)

    def _id_of(self, index):
        try:
            return int(base_index(self.dataset, index))
        except Exception as error:
            if raised_by_signal(error):
                raise
            # What is no sample's number is left out.
            return -1

    def resize(self, state):
        pass

    def epoch(self):
        self.ghost.look()
        self.ghost.epoch()

    def push(self):
        joint = self.ghost.curve()
        # One of them shows it for all; that there is none, each for its job.
        if joint is None or not (joint[0] or joint[1]):
            return
        is_mixed, _, ranks, dataset_bytes, points = joint
        if is_mixed:
            _native.cache_is_mixed(loader=self.tally.loader, ranks=ranks)
        else:
            self._push(self._whole(points), dataset_bytes, ranks)

    def points(self):
        joint = self.ghost.curve()
        return [] if joint is None else _shares(self._whole(joint[4]))


def _shares(points):
    return [(capacity_bytes, misses / uses) for capacity_bytes, uses, misses in points]
