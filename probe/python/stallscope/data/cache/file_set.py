"""What is kept of a sample that opens several files, an image and its mask say: all of them in one, so that they come and go together."""

import struct

from .reader import again

# Of each file its tag and how many bytes it has; then come the bytes of all.
_FILE = struct.Struct("<QQ")


def packed(files):
    """[(tag, bytes)], as bytes."""
    heads = [_FILE.pack(tag, len(data)) for tag, data in files]
    return b"".join([*heads, *(data for _, data in files)])


def unpacked(data, count):
    """The [(tag, bytes)] of so many files that were `packed`; none where it is nothing of the kind."""
    data = memoryview(data)
    at = count * _FILE.size
    if len(data) < at:
        return []
    heads = list(_FILE.iter_unpack(data[:at]))
    if at + sum(size for _, size in heads) != len(data):
        return []
    files = []
    for tag, size in heads:
        files.append((tag, data[at : at + size]))
        at += size
    return files


class FileSet:
    """The files that one sample opens, `count` of them, in this order. `use`: as `Kept.of` has it; None where nothing is kept of them."""

    def __init__(self, kept, use, count):
        self.kept = kept
        self.use = use
        self.count = count
        self.opens = 0
        # What is kept of all, and of each; and each as it is this time.
        self.found = None
        self.had = []
        self.files = []
        self.source_bytes = 0
        self.reads = 0

    def is_full(self):
        return self.opens >= self.count

    def of(self, tag, read):
        """The next file's bytes: those that are kept, or what `read()` reads where it is another one by now."""
        if not self.opens:
            self.found = self.kept.found(self.use, tag)
            self.had = [] if self.found is None else unpacked(self.found, self.count)
        number, self.opens = self.opens, self.opens + 1
        # One may be opened twice.
        data = dict(self.files).get(tag)
        if data is None and number < len(self.had) and self.had[number][0] == tag:
            data = self.had[number][1]
        if data is None:
            self.reads += 1
            data = again(read)
            self.source_bytes += len(data)
        self.files.append((tag, data))
        return data

    def over(self):
        """The sample is made, or could not be."""
        if self.use is None or not self.opens:
            return
        whole = len(self.files) == self.count
        if whole and not self.reads:
            self.kept.hit(self.use, self.found)
        else:
            self.kept.missed(self.source_bytes)
        if whole and self.reads:
            self.kept.keep(self.use, self.files[0][0], self.found is not None, lambda: packed(self.files))
