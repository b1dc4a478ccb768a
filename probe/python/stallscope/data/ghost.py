"""What share of the uses a larger cache would miss, or a smaller one: fed with what is handed over to training."""

from stallscope import _native

from .draws import drawn

_CACHE_CURVE = 14
# Among the ids of records: points of a curve come one after the other.
_COUNT_SHIFT = 16


class Curve:
    """Of one loader and data set."""

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
        self.ghost.handed(index)

    def resize(self, told):
        """The pool has told how large the cache is. How large samples are, it knows of those that it keeps."""
        kept_bytes, kept = told.get("kept_bytes", 0), told.get("kept_samples", 0)
        if not kept:
            sums = self.tally.totals()
            kept = sum(sums[name] for name in ("hits", "substitutions", "misses"))
            kept_bytes = sums["pool_bytes"] + sums["source_bytes"]
        if kept_bytes and told.get("capacity_bytes"):
            self.ghost.size(told["capacity_bytes"], kept_bytes / kept)
            self.is_sized = True

    def epoch(self):
        self.ghost.epoch()

    def push(self, time_ns):
        """Shows it where the shim is on."""
        points = self._points()
        dataset_bytes = self.ghost.dataset_bytes
        for number, (capacity_bytes, uses, misses) in enumerate(points):
            _native.push(
                _CACHE_CURVE, time_ns, loader=self.tally.loader, id=number | len(points) << _COUNT_SHIFT,
                a=capacity_bytes, b=uses, c=misses, d=dataset_bytes,
            )  # fmt: skip

    def points(self):
        return [(capacity_bytes, misses / uses) for capacity_bytes, uses, misses in self._points()]

    def _points(self):
        return [(int(capacity * self.whole), uses, misses) for capacity, uses, misses in self.ghost.curve()]
