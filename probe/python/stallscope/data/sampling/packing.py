"""Which draws are of low importance, and the packages that they come from and go to.

A package has the samples that are drawn in a range of places, and its number is the range's. So who reads a sample knows
by the place of its next draw where it belongs, and who draws it, where it may be found.
"""

from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.seeding.draws import UNKNOWN

# Of the draws, those of low importance: no more are expected to come in packages.
_EXPECTED = 0.3
# One of fewer samples would save hardly a request.
_LEAST_SAMPLES = 3


class Packing:
    """Of one order. `ahead`: batches that its loader may be at work on, or ask for, before one of them is handed over."""

    def __init__(self, ahead):
        self.ahead = ahead
        # The cache whose packages they are; None while there are none.
        self.store = None
        # Places of a package's range; 0 while that is not known.
        self.width = 0

    def __reduce__(self):
        # A copy of the loader has a cache of its own.
        return Packing, (self.ahead,)

    def into(self, store):
        """The loader has this cache from now on."""
        if store is not self.store:
            self.store, self.width = store, 0

    def begin(self, order):
        """An epoch begins, or what is left of it."""
        packages = self.store.packages if self.store is not None else None
        if packages is None:
            return
        try:
            if not self.width:
                self.width = self._width(packages)
            if self.width:
                packages.sweep(order.start // self.width)
                order.planner.label(order.handed, order.end - order.handed)
        except OSError as error:
            if raised_by_signal(error):
                raise
            # Who writes next says what is wrong with the folder.
            self.width = 0

    def _width(self, packages):
        sample_bytes = self.store.read_bytes_each()
        held = self.store.package_bytes / sample_bytes if sample_bytes else 0
        return packages.settle(int(held / _EXPECTED)) or 0 if held >= _LEAST_SAMPLES else 0

    def of(self, order, ids, place, next_at):
        """For each draw from `place` on the package that may have it, and the one that its sample is to be added to, if any."""
        width = self.width
        if not width:
            return [None] * len(ids)
        least = self.ahead * order.batch_size * order.ranks.count + width
        found = []
        for at, is_low, after in zip(range(place, place + len(ids)), order.planner.are_low(ids), next_at):
            # One that is drawn soon might be added to a package that was read by then.
            to = after // width if is_low and after != UNKNOWN and after - at >= least else None
            found.append((at // width, to))
        return found
