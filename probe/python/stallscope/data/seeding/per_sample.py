"""Random augmentation that belongs to the sample: seeded from (seed, epoch, index), whichever process makes it.

What goes to a worker as an index is a pair of the epoch's key and the index; the data set that it goes to is a
stand-in, which seeds the generators and asks the real one.
"""

import zlib
from functools import partial
from hashlib import blake2b

from torch.utils.data import get_worker_info

from stallscope.data.pack.in_chunks import InChunks
from stallscope.data.stand_in import StandIn

from .draws import gathered, plain, plain_all
from .isolation import apart, seed

_MASK = (1 << 64) - 1


def epoch_key(generator_state, epoch):
    """64 bits from what the order of samples comes from and the number of the epoch: no draw of its own, so that the
    job's generators give what they give with torch's loader."""
    return int.from_bytes(blake2b(generator_state + epoch.to_bytes(8, "little"), digest_size=8).digest(), "little")


def seed_of(key, index):
    """64 bits; SplitMix64's finalizer (Steele, Lea and Flood, 2014), which tells neighbours apart."""
    index = plain(index)
    if type(index) is not int:
        index = zlib.crc32(repr(index).encode())
    mixed = (key + 0x9E3779B97F4A7C15 * (index + 1)) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


class Batch:
    """What a sampler gives in place of a list of indices, for the data set's `__getitems__`, the key of this use, and which
    indices they are, as text."""

    def __init__(self, index, key, text):
        self.index = index
        self.key = key
        self.text = text


class _Keyed(StandIn):
    """Takes pairs of a key and an index, as a sampler of ours gives them."""

    def __getitem__(self, keyed_index):
        if get_worker_info() is None:
            return apart(partial(self._one_by_one, [keyed_index]))[0]
        return self._one_by_one([keyed_index])[0]

    def __getattr__(self, name):
        if name != "__getitems__" or "_stallscope_maker" not in self.__dict__:
            return super().__getattr__(name)
        whole = getattr(self._stallscope_dataset, name, None)
        in_worker = get_worker_info() is not None
        if not whole and in_worker:
            raise AttributeError(name)
        # Read at once and made one by one, its samples are those that the same pack in a folder gives. Not of what wraps it and passes
        # attributes on: its samples may be others.
        fetch_each = self._stallscope_dataset._stallscope_fetch_each if isinstance(self._stallscope_dataset, InChunks) else None

        def getitems(keyed_indices):
            if whole and isinstance(keyed_indices, Batch):
                number = seed_of(keyed_indices.key, keyed_indices.text)
                make = partial(self._as_it_is, whole, keyed_indices.index, partial(seed, number))
            elif fetch_each is not None and self._stallscope_maker is None:
                make = partial(self._fetched, fetch_each, keyed_indices)
            elif whole and fetch_each is None:
                # A list or a tuple, as the sampler gave it.
                indices = type(keyed_indices)([index for _, index in keyed_indices])
                number = seed_of(keyed_indices[0][0] if keyed_indices else 0, tuple(indices))
                make = partial(self._whole, whole, indices, partial(seed, number))
            else:
                make = partial(self._one_by_one, keyed_indices)
            return make() if in_worker else apart(make)

        return getitems

    def _whole(self, whole, indices, seed_all):
        if self._stallscope_maker is not None:
            return self._stallscope_maker.many(indices, seed_all)
        seed_all()
        return gathered(whole(plain_all(indices)))

    def _as_it_is(self, whole, index, seed_all):
        seed_all()
        return gathered(whole(index))

    def _fetched(self, fetch_each, keyed_indices):
        samples = []
        for (key, index), data in zip(keyed_indices, fetch_each([plain(index) for _, index in keyed_indices])):
            seed(seed_of(key, index))
            samples.append(self._stallscope_dataset.decode(data))
        return samples

    def _one_by_one(self, keyed_indices):
        samples = []
        for key, index in keyed_indices:
            number = seed_of(key, index)
            if self._stallscope_maker is not None:
                samples.append(self._stallscope_maker.one(index, partial(seed, number)))
            else:
                seed(number)
                samples.append(self._stallscope_dataset[plain(index)])
        return samples

    def __reduce__(self):
        return keyed, (self._stallscope_dataset, self._stallscope_maker)


def keyed(dataset, maker=None):
    """The stand-in for `dataset`, with the name of its class, which others may show."""
    return type(type(dataset).__name__, (_Keyed,), {})(dataset, maker)
