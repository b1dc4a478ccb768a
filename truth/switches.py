"""When the calling thread lost its CPU and got it back, as perf_event_open tells.

schedstat alone takes a thread off its CPU when another CPU decides that it has to go, an interrupt before it really goes:
some 20 us early in a virtual machine, which with a thousand preemptions a second is 2% of the time.
"""

import ctypes
import mmap
import os
import struct
import time
from typing import NamedTuple

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
# struct perf_event_attr up to clockid and what follows it in its fifth version.
ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIiQIHH")
SOFTWARE, DUMMY, SAMPLE_TIME = 1, 9, 1 << 2
SAMPLE_ID_ALL, USE_CLOCKID, CONTEXT_SWITCH = 1 << 18, 1 << 25, 1 << 26
SWITCH, LONGEST_RECORD = 14, 64
OUT, PREEMPTED = 1 << 13, 1 << 14
DATA_BYTES = 1 << 18
HEAD, TAIL = 1024, 1032


class Off(NamedTuple):
    """Nanoseconds without a CPU so far."""

    preempted_ns: int = 0
    preemptions: int = 0
    asleep_ns: int = 0


class Switches:
    """Of the thread that makes it; only that thread may read it. Raises OSError without the right to look."""

    def __init__(self):
        flags = SAMPLE_ID_ALL | USE_CLOCKID | CONTEXT_SWITCH
        attributes = ctypes.create_string_buffer(
            ATTRIBUTES.pack(
                SOFTWARE, ATTRIBUTES.size, DUMMY, 0, SAMPLE_TIME, 0, flags, 0, 0, 0, 0, 0, 0, 0, time.CLOCK_MONOTONIC, 0, 0, 0, 0
            )
        )
        libc = ctypes.CDLL(None, use_errno=True)
        file = libc.syscall(PERF_EVENT_OPEN[os.uname().machine], attributes, 0, -1, -1, 0)
        if file < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"perf_event_open: {os.strerror(error)}")
        self.ring = mmap.mmap(file, mmap.PAGESIZE + DATA_BYTES)
        self.file = file
        self.off = Off()
        self.left = None
        self.tail = 0

    def read(self) -> Off:
        """Up to now. Raises RuntimeError where the thread switched more often between two readings than the ring holds."""
        [head] = struct.unpack_from("<Q", self.ring, HEAD)
        if head - self.tail > DATA_BYTES - LONGEST_RECORD:
            raise RuntimeError("the thread switched more often than its ring of perf events holds")
        while self.tail < head:
            at = mmap.PAGESIZE + self.tail % DATA_BYTES
            # Records are multiples of 8 bytes, so that a header never wraps around; the time behind it may.
            kind, misc, size = struct.unpack_from("<IHH", self.ring, at)
            if kind == SWITCH:
                stamp = mmap.PAGESIZE + (self.tail + 8) % DATA_BYTES
                self.switched(misc, *struct.unpack_from("<Q", self.ring, stamp))
            self.tail += size
        struct.pack_into("<Q", self.ring, TAIL, self.tail)
        return self.off

    def switched(self, misc: int, time_ns: int):
        if misc & OUT:
            self.left = time_ns, bool(misc & PREEMPTED)
        elif self.left is not None:
            left_ns, preempted = self.left
            self.left, length_ns = None, time_ns - left_ns
            preempted_ns, preemptions, asleep_ns = self.off
            if preempted:
                self.off = Off(preempted_ns + length_ns, preemptions + 1, asleep_ns)
            else:
                self.off = Off(preempted_ns, preemptions, asleep_ns + length_ns)
