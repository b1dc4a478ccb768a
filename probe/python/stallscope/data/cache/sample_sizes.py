"""How large samples are, as those who read them have seen: for a trace."""

import ctypes

import torch

# Of more samples nobody keeps the sizes.
_MOST_SAMPLES = 1 << 26
_MOST_BYTES = 2**31 - 1


class Sizes:
    """Bytes by a sample's id, 0 where nobody has seen it yet; shared with the processes that make samples."""

    def __init__(self, samples, shared=None):
        if shared is None:
            shared = torch.zeros(samples, dtype=torch.int32, device="cpu").share_memory_()
        self.shared = shared
        # Each is written whole, and with what all others would write.
        self.table = (ctypes.c_int32 * shared.numel()).from_address(shared.data_ptr())
        self.sum = self.count = 0

    @classmethod
    def of(cls, samples):
        """None where there are too many."""
        return cls(samples) if samples <= _MOST_SAMPLES else None

    def __reduce__(self):
        return Sizes, (None, self.shared)

    def seen(self, number, size):
        self.table[number] = min(size, _MOST_BYTES)

    def __call__(self, ids):
        """Of each of them; of those that nobody has seen, as others on average."""
        sizes = [self.table[one] if 0 <= one < len(self.table) else 0 for one in ids]
        self.sum += sum(sizes)
        self.count += sum(1 for size in sizes if size)
        mean = self.sum // self.count if self.count else 0
        return [size or max(mean, 1) for size in sizes]
