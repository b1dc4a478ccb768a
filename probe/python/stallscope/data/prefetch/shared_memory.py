"""What training, workers, fetchers and their fork server tell each other without waiting: words and a count a
sample, in shared memory.

Nothing here has to be right for a sample to be right. A count that two workers write at once may be one short: then a
sample is read that was used already, and nothing else comes of it.
"""

import ctypes
import mmap

MOST_FETCHERS = 32
# How long a read under way may take once nobody waits for it.
LEAVING_S = 5
# By fetcher: samples and bytes that it has put into the staging space, nanoseconds that reading them took, and what
# it could not read or not put there.
COUNTS = ("reads", "bytes", "read_ns", "failed")

# How many fetchers there are to be, which pass it is, whether there ever were any, which group is to go on, how many
# fetchers died, and whether the loader is gone.
_WANTED, _PASS, _BEGUN, _GROUP, _DEATHS, _OVER, _FIRST = 0, 1, 2, 3, 4, 5, 8
_WORDS = _FIRST + MOST_FETCHERS * len(COUNTS)
_MOST_SAMPLES = 2**28
_LOW = 0xFFFF


class Shared:
    """Made before workers and fetchers are forked, which have it from then on."""

    def __init__(self, samples):
        if samples > _MOST_SAMPLES:
            raise ValueError(f"of {samples} samples none are fetched ahead; {_MOST_SAMPLES} is the most")
        # Anonymous and shared; pages are taken when they are first written.
        memory = mmap.mmap(-1, _WORDS * 8 + samples * 4)
        self.words = (ctypes.c_uint64 * _WORDS).from_buffer(memory)
        # By sample: the pass in the upper half, and its uses in it in the lower.
        self.uses = (ctypes.c_uint32 * samples).from_buffer(memory, _WORDS * 8)

    @property
    def wanted(self):
        return self.words[_WANTED]

    @wanted.setter
    def wanted(self, count):
        self.words[_WANTED] = count
        if count:
            self.words[_BEGUN] = 1

    @property
    def begun(self):
        """Once there were fetchers, what they read may lie in the staging space."""
        return self.words[_BEGUN]

    @property
    def number(self):
        """Of the pass, so that requests of an earlier one are known; below 2**16."""
        return self.words[_PASS]

    def next_pass(self):
        self.words[_PASS] = (self.words[_PASS] + 1) & _LOW

    @property
    def group(self):
        return self.words[_GROUP]

    def next_group(self):
        """Fetchers that were made before are to end."""
        self.words[_GROUP] += 1

    @property
    def deaths(self):
        return self.words[_DEATHS]

    def died(self):
        """By a fork server: a fetcher has."""
        self.words[_DEATHS] += 1

    @property
    def over(self):
        """Nobody waits for what is under way."""
        return self.words[_OVER]

    def end(self):
        self.words[_OVER] = 1
        self.next_group()

    def used(self, sample):
        """A worker has the sample, or is about to read it."""
        number = self.words[_PASS]
        known = self.uses[sample]
        count = known & _LOW if known >> 16 == number else 0
        self.uses[sample] = number << 16 | min(count + 1, _LOW)

    def is_over(self, sample, number, use):
        """Whether the use of this pass that has so many before it has been made, or is nobody's any more."""
        if self.words[_PASS] != number:
            return True
        known = self.uses[sample]
        return known >> 16 == number and known & _LOW > use

    def add(self, fetcher, **counts):
        """By the fetcher alone."""
        row = _FIRST + fetcher * len(COUNTS)
        for name, count in counts.items():
            self.words[row + COUNTS.index(name)] += count

    def totals(self):
        words = self.words[_FIRST:]
        return {name: sum(words[column :: len(COUNTS)]) for column, name in enumerate(COUNTS)}


def use_word(sample, number, use):
    """A use as it goes to the fetchers, in 64 bits."""
    return sample | min(use, _LOW) << 32 | number << 48


def heard(record):
    """Sample, pass, and how many uses are before it in that."""
    return record & 0xFFFFFFFF, record >> 48, record >> 32 & _LOW
