"""Batches that the trainer makes itself, timed without a native frame around the user's code.

A loader without workers may be iterated in a daemon thread. When the interpreter ends, such a thread is taken down
inside whatever it was calling, and that must not be native code of ours: unwinding through it aborts the process.
(A worker makes its batches in its main thread, which nobody takes down.)
"""

import weakref
from operator import length_hint

from .patch import passed_over


class _Samples:
    """A data set whose samples are timed."""

    __slots__ = ("dataset", "producer")

    def __init__(self, dataset, producer):
        self.dataset = dataset
        self.producer = producer

    @passed_over
    def __getitem__(self, index):
        sample = self.dataset[index]
        self.producer.sample(1)
        return sample

    def __getattr__(self, name):
        # An attribute of one that is not made yet would be looked up for ever.
        if name == "dataset":
            raise AttributeError(name)
        value = getattr(self.dataset, name)
        if name != "__getitems__" or not value:
            return value

        @passed_over
        def getitems(indices):
            samples = value(indices)
            # What a sampler gives need not have a length.
            self.producer.sample(length_hint(indices))
            return samples

        return getitems


class _Stream:
    """An iterable data set's iterator whose samples are timed."""

    __slots__ = ("iterator", "producer")

    def __init__(self, iterator, producer):
        self.iterator = iterator
        self.producer = producer

    def __iter__(self):
        return self

    @passed_over
    def __next__(self):
        sample = next(self.iterator)
        self.producer.sample(1)
        return sample


def observe(fetcher, producer, iterable):
    """`fetcher.fetch` runs on a shadow of it, so that the fetcher keeps its own attributes."""
    reference = weakref.ref(fetcher)
    shadow = object.__new__(type(fetcher))
    shadow.__dict__.update(fetcher.__dict__)

    @passed_over
    def collate(samples):
        producer.collate()
        return reference().collate_fn(samples)

    shadow.collate_fn = collate

    @passed_over
    def fetch(index):
        fetcher = reference()
        if not iterable:
            shadow.dataset = _Samples(fetcher.dataset, producer)
        else:
            shadow.ended = fetcher.ended
            shadow.dataset_iter = _Stream(fetcher.dataset_iter, producer)
        producer.begin()
        try:
            batch = type(fetcher).fetch(shadow, index)
        except BaseException:
            producer.abandon()
            raise
        finally:
            if iterable:
                fetcher.ended = shadow.ended
        producer.ready()
        return batch

    fetcher.fetch = fetch
