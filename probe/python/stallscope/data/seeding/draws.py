"""What an index of ours says beside which sample is meant. A script's may have attributes of any name, as jax's have `at`."""

import operator
from collections.abc import Iterator

from stallscope.data.sampling.uses import Use

# In place of a place among the draws.
UNKNOWN = 2**64 - 1
_MASK = 2**64 - 1
_MOST_COUNTED = 2**32
# Between the keys of two uses; odd, so that all of them differ.
_APART = 0xD1342543DE82EF95


def plain(index):
    """`index` as the data set is to see it: without what it says of the draws."""
    return int(index) if type(index) is Use else index


def plain_all(indices):
    """`plain` of all of a batch, as a list or as a tuple, as they came."""
    return type(indices)([plain(index) for index in indices])


def drawn(index):
    """What was drawn, where another sample is given in its place; else `index` itself."""
    return getattr(index, "stands_for", index) if type(index) is Use else index


def is_given_for_another(index):
    return type(index) is Use and hasattr(index, "stands_for")


def places(index):
    """The places of this use and of the next among all draws."""
    return (index.at, index.next_at) if type(index) is Use else (UNKNOWN, UNKNOWN)


def package_of(index):
    """The packages that a use comes from and goes to; None where there are none."""
    return getattr(index, "package", None) if type(index) is Use else None


def gathered(samples):
    """What `__getitems__` gave, with all of its samples made: where they are made when they are asked for, they would draw
    from whatever generators are there by then."""
    return iter(list(samples)) if isinstance(samples, Iterator) else samples


class Repeats:
    """Tells the uses of a sample within an epoch apart, so that each is augmented anew."""

    def __init__(self, samples):
        # What is not touched of it takes no memory.
        self.counts = bytearray(samples if samples is not None and samples <= _MOST_COUNTED else 0)
        self.more = {}

    def count(self, number):
        """How many uses of the sample with this number are before this one; 255 stands for more."""
        count = self.counts[number] if number < len(self.counts) else 255
        if count < 255:
            self.counts[number] = count + 1
        return count

    def key(self, key, index):
        """The epoch's key for this use of `index`: for its first use as it is, where no place says which use it is."""
        if type(index) is Use:
            return (key + index.at * _APART) & _MASK
        first = 0
        try:
            number = operator.index(index)
            if 0 <= number < len(self.counts):
                count = self.counts[number]
                if count < 255:
                    self.counts[number] = count + 1
                    return (key + count * _APART) & _MASK
                first = 255
        except TypeError:
            number = index
        try:
            count = self.more.get(number, first)
            self.more[number] = count + 1
        except TypeError:
            # Nothing that could be found again.
            return key
        return (key + count * _APART) & _MASK
