"""One read at a time through io_uring, without a library: for a truth job only.

Layout and numbers: io_uring_setup(2), io_uring_enter(2), linux/io_uring.h.
"""

import ctypes
import mmap
import os
import struct

SETUP, ENTER = 425, 426
OP_READ, GETEVENTS = 22, 1
OFF_SQ_RING, OFF_CQ_RING, OFF_SQES = 0, 0x8000000, 0x10000000
PARAMS = struct.Struct("<IIIIIII3I" + "8IQ" + "8IQ")
SQE = struct.Struct("<BBHiQQIIQHHiQQ")

libc = ctypes.CDLL(None, use_errno=True)


class Uring:
    """A ring of one request. Raises OSError where the kernel refuses."""

    def __init__(self):
        params = ctypes.create_string_buffer(PARAMS.size)
        self.fd = checked(libc.syscall(SETUP, 1, params))
        fields = PARAMS.unpack(params.raw)
        sq_entries, cq_entries = fields[0], fields[1]
        self.sq_tail, self.sq_array = fields[11], fields[16]
        self.cq_head, self.cq_tail, self.cq_mask, self.cqes = fields[19], fields[20], fields[21], fields[24]
        self.sq = mmap.mmap(self.fd, self.sq_array + 4 * sq_entries, offset=OFF_SQ_RING)
        self.cq = mmap.mmap(self.fd, self.cqes + 16 * cq_entries, offset=OFF_CQ_RING)
        self.entries = mmap.mmap(self.fd, SQE.size * sq_entries, offset=OFF_SQES)

    def read(self, fd: int, buffer: mmap.mmap, size: int, offset: int) -> int:
        """Reads into `buffer` and blocks until it is done; bytes read. Raises OSError."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        self.entries[: SQE.size] = SQE.pack(OP_READ, 0, 0, fd, offset, address, size, 0, 0, 0, 0, 0, 0, 0)
        tail = number(self.sq, self.sq_tail)
        set_number(self.sq, self.sq_array, 0)
        set_number(self.sq, self.sq_tail, tail + 1)
        checked(libc.syscall(ENTER, self.fd, 1, 1, GETEVENTS, None, 0))
        head = number(self.cq, self.cq_head)
        at = self.cqes + 16 * (head & number(self.cq, self.cq_mask))
        result = struct.unpack_from("<i", self.cq, at + 8)[0]
        set_number(self.cq, self.cq_head, head + 1)
        if result < 0:
            raise OSError(-result, f"io_uring read: {os.strerror(-result)}")
        return result


def number(ring: mmap.mmap, at: int) -> int:
    return struct.unpack_from("<I", ring, at)[0]


def set_number(ring: mmap.mmap, at: int, value: int):
    struct.pack_into("<I", ring, at, value & 0xFFFFFFFF)


def checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"io_uring: {os.strerror(code)}")
    return result
