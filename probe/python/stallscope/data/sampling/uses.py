"""The uses of an epoch's batches, as they are handed to the makers of samples."""

from itertools import repeat


class Use(int):
    """One use of the sample with this index."""

    def __new__(cls, index, at, next_at, weight=1.0, stands_for=None, package=None):
        use = super().__new__(cls, index)
        use.at = at
        """Its place among all draws."""
        use.next_at = next_at
        """The place of the sample's next use; 2**64 - 1: not known yet."""
        use.weight = weight
        """What the sample's loss is to be multiplied with. Stays in the training process."""
        if stands_for is not None:
            use.stands_for = stands_for
            """The use that was drawn, where this sample is given in its place; True in a worker."""
        if package is not None:
            use.package = package
            """The number of the package that may have it, and of the one that it is to be added to, or None."""
        return use

    def __reduce__(self):
        if hasattr(self, "package"):
            return Use, (int(self), self.at, self.next_at, 1.0, None, self.package)
        if hasattr(self, "stands_for"):
            return Use, (int(self), self.at, self.next_at, 1.0, True)
        return Use, (int(self), self.at, self.next_at)


class Course:
    """The batches of an epoch that are this rank's, as lists of uses. It outlives the beginning of the next epoch."""

    def __init__(self, order, batch):
        self.order = order
        self.start, self.end, self.first = order.start, order.end, batch
        # Draws behind the beginning of the next epoch, once that has begun.
        self.kept = None
        # Batches that were looked at before their turn, where other samples may be given: it is decided once.
        self.seen = {}

    def __len__(self):
        each = (self.end - self.start) // self.order.ranks.count
        return -(-each // self.order.batch_size)

    def __iter__(self):
        batch = self.first
        while True:
            uses = self.uses(batch)
            if not uses:
                return
            yield uses
            batch += 1

    def uses(self, batch):
        if self.kept is not None:
            return self.kept.pop(batch, [])
        if batch in self.seen:
            return self.seen.pop(batch)
        return self._given(batch, self._drawn(batch))

    def _drawn(self, batch):
        place, count, _ = self.order.part(self.start, self.end, batch)
        ids, weights, next_at = self.order.planner.take(place, count)
        uses = ids, range(place, place + count), next_at, weights
        if self.order.packing is None:
            return list(map(Use, *uses))
        packages = self.order.packing.of(self.order, ids, place, next_at)
        return list(map(Use, *uses, repeat(None), packages))

    def _given(self, batch, uses):
        """What is given for what was drawn. For each batch once, in order."""
        order = self.order
        if order.substitution is None or not uses or not order.is_newest(self):
            return uses
        place, each, _ = order.part(self.start, self.end, batch)
        count = order.ranks.count
        first = place - order.ranks.rank * each
        drawn = [int(use) for use in uses] if count == 1 else order.planner.ids(first, each * count)
        return order.substitution.given(order, first, drawn, uses, place - first)

    def peek(self, batch):
        """The uses of a batch, counted from the first of this course, as they are planned by now; None where there are
        none. What is drawn stays as it is."""
        if self.kept is not None or not self.order.is_newest(self):
            return None
        batch += self.first
        uses = self.seen[batch] if batch in self.seen else self.uses(batch)
        if uses and self.order.substitution is not None:
            self.seen[batch] = uses
        return uses or None

    def keep(self):
        """Another epoch is about to begin while this one goes on, and draws what follows this one."""
        if not self.order.is_newest(self):
            return
        whole = self.order.batch_size * self.order.ranks.count
        ahead = max(0, self.order.handed - self.start) // whole
        batches = ((batch, self.seen.get(batch) or self._drawn(batch)) for batch in range(ahead, len(self)))
        self.kept = {batch: uses for batch, uses in batches if uses}
        self.order.leave(self.end)

    def asked(self):
        """Training asks for a batch."""
        if self.order.is_newest(self):
            self.order.asked()

    def handed_over(self, batch):
        """`batch`: its number in the epoch."""
        if self.order.is_newest(self):
            _, _, place = self.order.part(self.start, self.end, batch)
            self.order.handed_over(place)


class Singly:
    """A course use by use, for a loader that makes no batches."""

    def __init__(self, course):
        self.course = course

    def __len__(self):
        return len(self.course)

    def __iter__(self):
        for uses in self.course:
            yield from uses
