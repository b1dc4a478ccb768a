"""What came of the uses of samples: counted where they are made, summed up where the loader is."""

import ctypes
import mmap

import torch
from torch.utils.data import get_worker_info

from stallscope import _native
from stallscope._hooks.patch import passed_over

# Of packages: samples that came in them, which are misses, and what that took.
PACKAGED = ("packaged", "package_reads", "package_read_bytes", "package_written_bytes")
FIELDS = ("hits", "late", "misses", "prefetched", "pool_bytes", "source_bytes", "substitutions", *PACKAGED)
# One for what makes batches in the training process, and one for each worker's number, from which on they share.
_ROWS = 257
_COUNTS = ctypes.c_int64 * (_ROWS * len(FIELDS))


class Tally:
    """Counts of this process since the last batch, and of all processes since the loader's first."""

    # Where workers count that are not forked.
    sums = None

    def __init__(self):
        # Not a tensor: that would keep a descriptor, and close its number when it goes. A job that has closed all of its own may have a file
        # there by then; if nothing is there torch ends the process.
        self.table = _COUNTS.from_buffer(mmap.mmap(-1, ctypes.sizeof(_COUNTS)))
        # By sample, where somebody asks for them.
        self.sizes = None
        self._begin(0)

    def _begin(self, loader):
        # The loader's number in the training process, where that is known. Of a worker's batches it is found out.
        self.loader = loader
        self.hits = self.late = self.misses = self.prefetched = self.pool_bytes = self.source_bytes = 0
        # Uses of samples that were found and are given in the place of others; no hits.
        self.substitutions = 0
        self.packaged = self.package_reads = self.package_read_bytes = self.package_written_bytes = 0

    def __reduce__(self):
        if self.sums is None:
            self.sums = torch.zeros(_ROWS * len(FIELDS), dtype=torch.int64, device="cpu").share_memory_()
        return _again, (self.sums, self.loader, self.sizes)

    def batch(self):
        """A batch was made, or is about to be collated."""
        counts = [getattr(self, name) for name in FIELDS]
        if not any(counts):
            return
        for name in FIELDS:
            setattr(self, name, 0)
        info = get_worker_info()
        # One process writes a row at a time, and the sums are for people: a count that is lost where two do harms nobody.
        row = 0 if info is None else 1 + info.id % (_ROWS - 1)
        for column, count in enumerate(counts, row * len(FIELDS)):
            self.table[column] += count
        hits, late, misses, prefetched, pool_bytes, source_bytes, substitutions, *_ = counts
        # Goes nowhere where the shim is not on.
        _native.cache_uses(
            loader=self.loader, hits=hits, late=late, misses=misses, prefetched=prefetched,
            pool_bytes=pool_bytes, source_bytes=source_bytes, substitutions=substitutions,
        )  # fmt: skip

    def totals(self):
        tables = [self.table] if self.sums is None else [self.table, _table_of(self.sums)]
        return {name: sum(sum(table[column :: len(FIELDS)]) for table in tables) for column, name in enumerate(FIELDS)}

    def tell_source(self, read_bytes):
        """Bytes that were read from the source beside those of batches."""
        _native.cache_uses(loader=self.loader, source_bytes=read_bytes)


def _again(sums, loader, sizes):
    tally = Tally.__new__(Tally)
    tally.sums, tally.sizes = sums, sizes
    tally.table = _table_of(sums)
    tally._begin(loader)
    return tally


def _table_of(sums):
    """Written with no more than the interpreter has: what training has made of torch does not matter here."""
    return _COUNTS.from_address(sums.data_ptr())


class Collating:
    """A loader's collate function: when it is called, all samples of a batch are made."""

    def __init__(self, users, maker):
        self.users = users
        self.maker = maker

    @passed_over
    def __call__(self, samples):
        self.maker.batch_made()
        return self.users(samples)
