"""How large samples are, as those who read them have seen: for a trace."""

import ctypes
import mmap

import torch

# Of more samples nobody keeps the sizes.
_MOST_SAMPLES = 1 << 26
_MOST_BYTES = 2**31 - 1


class Sizes:
    """Bytes by a sample's id, 0 where nobody has seen it yet; shared with the processes that make samples."""

    def __init__(self, samples, shared=None):
        # Where workers write that are not forked. All others share memory without a descriptor, as in statistics.py.
        self.samples, self.shared = samples, shared
        # Each is written whole, and with what all others would write.
        kind = ctypes.c_int32 * samples
        self.table = kind.from_buffer(mmap.mmap(-1, max(1, ctypes.sizeof(kind)))) if shared is None else self._of_others()
        self.sum = self.count = 0

    @classmethod
    def of(cls, samples):
        """None where there are too many."""
        return cls(samples) if samples <= _MOST_SAMPLES else None

    def __reduce__(self):
        if self.shared is None:
            self.shared = torch.zeros(self.samples, dtype=torch.int32, device="cpu").share_memory_()
        return Sizes, (self.samples, self.shared)

    def _of_others(self):
        return (ctypes.c_int32 * self.samples).from_address(self.shared.data_ptr())

    def seen(self, number, size):
        self.table[number] = min(size, _MOST_BYTES)

    def __call__(self, ids):
        """Of each of them; of those that nobody has seen, as others on average."""
        tables = [self.table] if self.shared is None else [self.table, self._of_others()]
        sizes = [max(table[one] for table in tables) if 0 <= one < self.samples else 0 for one in ids]
        self.sum += sum(sizes)
        self.count += sum(1 for size in sizes if size)
        mean = self.sum // self.count if self.count else 0
        return [size or max(mean, 1) for size in sizes]
