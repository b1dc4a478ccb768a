"""A job that reads files in several ways and writes down how long it waited for each.

`reader.py ACCOUNT WAY:PATH...`, where a way is `direct` (past the page cache), `mapped` (by page faults) or `files`
(every file of a folder, each opened, read and closed). ACCOUNT becomes a JSON object: ns off the CPU by path.
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

PIECE_BYTES = 64 << 10


def direct(path: Path):
    buffer = mmap.mmap(-1, PIECE_BYTES)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    offset = 0
    while size := os.preadv(fd, [buffer], offset):
        offset += size
    os.close(fd)


def mapped(path: Path):
    fd = os.open(path, os.O_RDONLY)
    with mmap.mmap(fd, 0, access=mmap.ACCESS_COPY) as data:
        os.close(fd)
        # Else one fault reads what many would wait for.
        data.madvise(mmap.MADV_RANDOM)
        for offset in range(0, len(data), mmap.PAGESIZE):
            data[offset]


def whole(path: Path):
    path.read_bytes()


WAYS: dict[str, Callable[[Path], None]] = {"direct": direct, "mapped": mapped, "files": whole}


def waited_ns(read: Callable[[Path], None], path: Path) -> int:
    begun, cpu = time.monotonic_ns(), time.thread_time_ns()
    read(path)
    return time.monotonic_ns() - begun - (time.thread_time_ns() - cpu)


def main():
    account, *tasks = sys.argv[1:]
    waits = {}
    for task in tasks:
        way, _, name = task.partition(":")
        path = Path(name)
        # Listing waits too, but for no file.
        for one in sorted(path.iterdir()) if way == "files" else [path]:
            waits[str(one)] = waited_ns(WAYS[way], one)
    Path(account).write_text(json.dumps(waits))


if __name__ == "__main__":
    main()
