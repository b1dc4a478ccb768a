"""The bytes of samples: from the pool, or read and put there."""

import errno
import os
import time
from hashlib import blake2b

from stallscope._hooks.knobs import raised_by_signal

# A reader of the same sample is waited for so long, in all and at a time, between which signals are heard.
_WAITS, _WAIT_MS = 25, 200
# Waits before reading again where a source has failed in a way that passes.
_AGAIN_AFTER_S = (0.05, 0.5)
_PASSES = {
    getattr(errno, name)
    for name in (
        "EIO", "EAGAIN", "EINTR", "ESTALE", "ETIMEDOUT", "ECONNRESET", "ECONNREFUSED", "ECONNABORTED", "ENOTCONN",
        "ENETDOWN", "ENETUNREACH", "EHOSTDOWN", "EHOSTUNREACH", "EREMOTEIO",
    )
    if hasattr(errno, name)
}  # fmt: skip


class Unkept(Exception):
    """Raised by what reads a sample, where it is not to be kept: `instead` is what it gives."""

    def __init__(self, instead):
        self.instead = instead


class Kept:
    """What one process has of a data set's part of the pool."""

    def __init__(self, space, tally, policy):
        self.space = space
        self.tally = tally
        # The others learn of hits from those who had them.
        self.tells_uses = policy != "minio"
        self.uses = []
        self.waits = _WAITS

    def of(self, use, tag, read, made=None):
        """What is kept of a sample: the bytes that `read()` reads where it is not there, or what `made(bytes)` makes of
        them. `use`: the sample's id, the places of this use and of the next among all draws, whether it is given in
        the place of another one, and its packages."""
        space = self.space
        data = space.get(use[0], tag)
        if data is not None:
            return self.hit(use, data)
        for _ in range(self.waits):
            began_s = time.monotonic()
            if space.claim(use[0], _WAIT_MS, tag):
                return self._fill(use, tag, read, made)
            waited_s = time.monotonic() - began_s
            data = space.get(use[0], tag)
            if data is not None:
                self.tally.late += not use[3]
                return self.hit(use, data)
            # The one that read it keeps it to itself.
            if waited_s < _WAIT_MS / 2000:
                break
        data = self._read(read)
        return data if made is None else made(data)

    def found(self, use, tag):
        """What is kept of a sample, which counts as a hit once `hit` says so; None where nothing is."""
        return self.space.get(use[0], tag)

    def hit(self, use, data):
        self.tally.pool_bytes += len(data)
        if self.tally.sizes is not None:
            self.tally.sizes.seen(use[0], len(data))
        if use[3]:
            # No hit; and a policy that heard of it would take it for a draw of this sample.
            self.tally.substitutions += 1
            return data
        self.tally.hits += 1
        if self.tells_uses:
            self.uses.append(use[:3])
        return data

    def _fill(self, use, tag, read, made):
        try:
            data = self._read(read)
            data = data if made is None else made(data)
        except BaseException:
            self.space.give_up(use[0])
            raise
        if self.tally.sizes is not None:
            self.tally.sizes.seen(use[0], len(data))
        self.space.fill(use[0], tag, data, use[1], use[2])
        return data

    def keep(self, use, tag, is_there, make):
        """Keeps what `make()` gives of a sample that was read already; `is_there`: in the place of what is kept of it under the same tag."""
        if is_there:
            # Of one tag the pool takes no other bytes.
            self.space.fill(use[0], tag ^ 1, b"", use[1], use[2])
        if not self.space.claim(use[0], 0, tag):
            return
        try:
            data = make()
        except BaseException:
            self.space.give_up(use[0])
            raise
        if self.tally.sizes is not None:
            self.tally.sizes.seen(use[0], len(data))
        self.space.fill(use[0], tag, data, use[1], use[2])

    def missed(self, source_bytes):
        """A sample was made for which so many bytes had to be read."""
        self.tally.misses += 1
        self.tally.source_bytes += source_bytes

    def _read(self, read):
        self.tally.misses += 1
        data = again(read)
        self.tally.source_bytes += len(data)
        return data

    def batch(self):
        """A batch was made."""
        self.tally.batch()
        if self.uses:
            uses, self.uses = self.uses, []
            self.space.used(uses)


def again(read):
    """`read()`, up to three times where the source fails in a way that passes; its last error as it is."""
    for wait_s in _AGAIN_AFTER_S:
        try:
            return read()
        except OSError as error:
            passes = error.errno in _PASSES or isinstance(error, (ConnectionError, TimeoutError))
            if not passes or raised_by_signal(error):
                raise
        time.sleep(wait_s)
    return read()


def seen_of(described):
    """What distinguishes a file from another one and from itself before, at a look: a copy may set times alone."""
    of = described
    return b"%d %d %d %d %d" % (of.st_size, of.st_mtime_ns, of.st_ctime_ns, of.st_ino, of.st_dev)


def tag_of(path, looks=False, described=None):
    """64 bits that name a file; `looks`: and tell whether it is still the same, unchanged, where it is there. `described`: of who has it open."""
    name = os.fsencode(path)
    if looks:
        try:
            name += b"\0" + seen_of(described or os.stat(name))
        except (OSError, ValueError):
            # The open that follows meets what is wrong with it.
            pass
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
