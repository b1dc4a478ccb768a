"""Which samples are requested of the fetchers, and when: those of the batches that torch asked for, and of some more where
looking at them changes nothing."""

from collections import deque

import torch.utils.data
from torch.utils.data.distributed import DistributedSampler

from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.seeding.draws import Repeats

_NO_END = 2**63


def safe_batches(loader):
    """Of how many batches from the epoch's begin the loader's own sampler may be asked earlier than torch does, so that
    neither what it draws nor what anybody else draws becomes another; 0: of none.

    After its first draw, a SequentialSampler, a DistributedSampler and a RandomSampler without a generator draw from
    what is theirs alone. With a generator of its user's, a RandomSampler draws once at its begin, and once more when it
    is asked for what is behind its last sample: up to there it may be asked. All others are not asked."""
    data, batches = torch.utils.data, loader.batch_sampler
    if batches is None:
        sampler, each = loader.sampler, 1
    elif type(batches) is data.BatchSampler:
        sampler, each = batches.sampler, batches.batch_size
    else:
        return 0
    if type(sampler) in (data.SequentialSampler, DistributedSampler):
        return _NO_END
    if type(sampler) is not data.RandomSampler:
        return 0
    if sampler.generator is None:
        return _NO_END
    if sampler.replacement or getattr(sampler, "_num_samples", 0) is not None:
        return 0
    return len(sampler) // each


class Peeking:
    """What a sampler gives, some of which can be looked at before it is its turn."""

    def __init__(self, indices, safe):
        self.indices = indices
        self.safe = safe
        self.taken = 0
        self.seen = deque()
        self.failed = None
        self.ended = False

    def __iter__(self):
        return self

    def __next__(self):
        if self.seen:
            return self.seen.popleft()
        if self.failed is not None:
            failed, self.failed = self.failed, None
            raise failed
        self.taken += 1
        return next(self.indices)

    def peek(self):
        """The next one that nobody has seen, None where it may not be looked at. Not before torch took its first."""
        if self.ended or self.failed is not None or not 0 < self.taken < self.safe:
            return None
        self.taken += 1
        try:
            self.seen.append(next(self.indices))
        except StopIteration:
            self.ended = True
            return None
        except Exception as error:
            if raised_by_signal(error):
                raise
            # For whom it would have met.
            self.failed = error
            return None
        return self.seen[-1]


class Feed:
    """Of one pass: tells `ahead`, which has the fetchers, which samples are used in which order."""

    def __init__(self, ahead, safe, course, batched):
        self.ahead = ahead
        self.safe = safe
        self.course = course
        self.batched = batched
        self.peeking = None
        # Batches that torch has, and those that were seen.
        self.given = self.seen = 0
        # Batches whose samples are not requested yet: number and samples. Those requested and not handed over: number and count.
        self.waiting = deque()
        self.requested = deque()
        self.under_way = 0
        self.repeats = None

    def over(self, indices):
        """`indices`, of a sampler that torch begins; the last that was begun counts."""
        if self.course is not None or not self.safe:
            return indices
        self.peeking = Peeking(indices, self.safe)
        return self.peeking

    def gave(self, index):
        """Torch has another batch."""
        if self.seen == self.given:
            self._see(index)
        self.given += 1

    def _see(self, index):
        if self.ahead.is_on:
            self.waiting.append((self.seen, deque(self._samples(index))))
        self.seen += 1

    def _samples(self, index):
        of = self.ahead.sample_of
        try:
            samples = [of(one) for one in index] if self.batched else [of(index)]
        except Exception as error:
            if raised_by_signal(error):
                raise
            # No list of indices: a slice, or what is wrong and for the data set to say.
            return []
        return [one for one in samples if one is not None]

    def go_on(self, handed):
        """So many of the batches that torch had were handed over."""
        try:
            self._go_on(handed)
        except Exception as error:
            if raised_by_signal(error):
                raise
            self.ahead.stop(f"{type(error).__name__}: {error}")

    def _go_on(self, handed):
        for done in (self.requested, self.waiting):
            while done and done[0][0] < handed:
                _, count = done.popleft()
                if done is self.requested:
                    self.under_way -= count
        self.ahead.look()
        if not self.ahead.is_on:
            self.waiting.clear()
            return
        headroom = self.ahead.headroom()
        self._look_further(headroom)
        records = []
        while self.waiting and self.under_way < headroom:
            number, samples = self.waiting[0]
            count = min(len(samples), headroom - self.under_way)
            records += [self._request(samples.popleft()) for _ in range(count)]
            self.requested.append((number, count))
            self.under_way += count
            if not samples:
                self.waiting.popleft()
        self.ahead.tell(records)

    def _look_further(self, headroom):
        most = self.given + self.ahead.window
        samples = self.under_way + sum(len(part) for _, part in self.waiting)
        while self.given and self.seen < most and samples < headroom:
            index = self._peek()
            if index is None:
                return
            self._see(index)
            samples += len(self.waiting[-1][1])

    def _peek(self):
        if self.course is None:
            return self.peeking.peek() if self.peeking is not None else None
        return self.course.peek(self.seen) if self.batched else None

    def _request(self, sample):
        if self.repeats is None:
            self.repeats = Repeats(self.ahead.samples)
        return self.ahead.record(sample, self.repeats.count(sample))
