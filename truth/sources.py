"""Where a truth job's samples come from: one class a way of reading, each `fetch(index) -> bytes`.

All are opened on first use, so that they may be inherited by fork or pickled to a spawned worker, and drop what
they read from the page cache, so that every read meets the device.
"""

import mmap
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import torch
from server import REQUEST
from uring import Uring

FILES, BIG = "files", "big.bin"


@dataclass
class Source:
    folder: str
    sample_bytes: int
    samples: int

    def offset(self, index: int) -> int:
        return index % self.samples * self.sample_bytes

    def __getstate__(self):
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def big(self, flags: int = 0) -> int:
        if "fd" not in self.__dict__:
            self.fd = os.open(os.path.join(self.folder, BIG), os.O_RDONLY | flags)
        return self.fd

    def forget(self, index: int):
        os.posix_fadvise(self.fd, self.offset(index), self.sample_bytes, os.POSIX_FADV_DONTNEED)


class Nothing(Source):
    def fetch(self, index: int) -> bytes:
        return bytes(64)


class Read(Source):
    """One file a sample, as ImageFolder."""

    def fetch(self, index: int) -> bytes:
        return read_file(f"{self.folder}/{FILES}/{index % self.samples:05}.bin")


class Small(Source):
    """A sample of many small files, as the frames of a clip."""

    FILES_A_SAMPLE = 8

    def fetch(self, index: int) -> bytes:
        first = index * self.FILES_A_SAMPLE
        names = (f"{self.folder}/{FILES}/{(first + n) % self.samples:05}.bin" for n in range(self.FILES_A_SAMPLE))
        return b"".join(read_file(name) for name in names)


class Big(Source):
    """Ranges of one big file, by pread."""

    def fetch(self, index: int) -> bytes:
        data = os.pread(self.big(), self.sample_bytes, self.offset(index))
        self.forget(index)
        return data


class Mmap(Source):
    """Ranges of one big file, by page faults, with the GIL released meanwhile as torch's copies do."""

    def fetch(self, index: int) -> bytes:
        if "map" not in self.__dict__:
            self.map = mmap.mmap(self.big(), 0, access=mmap.ACCESS_COPY)
            # Else each fault reads up to 2 MiB around it, most of which nobody asked for.
            self.map.madvise(mmap.MADV_RANDOM)
        at = self.offset(index)
        data = self.copy(at)
        self.map.madvise(mmap.MADV_DONTNEED, at, self.sample_bytes)
        self.forget(index)
        return data

    def copy(self, at: int):
        return torch.frombuffer(self.map, dtype=torch.uint8, offset=at, count=self.sample_bytes).clone().numpy()


class MmapHeld(Mmap):
    """The same with the GIL held during the faults, as slices of numpy's memory maps do."""

    def copy(self, at: int):
        return self.map[at : at + self.sample_bytes]


class Direct(Source):
    """Ranges of one big file, past the page cache."""

    def fetch(self, index: int) -> bytes:
        if "buffer" not in self.__dict__:
            self.buffer = mmap.mmap(-1, self.sample_bytes)
        os.preadv(self.big(os.O_DIRECT), [self.buffer], self.offset(index))
        return self.buffer[:]


class IoUring(Source):
    """Ranges of one big file, by io_uring."""

    def fetch(self, index: int) -> bytes:
        if "ring" not in self.__dict__:
            self.ring, self.buffer = Uring(), mmap.mmap(-1, self.sample_bytes)
        size = self.ring.read(self.big(), self.buffer, self.sample_bytes, self.offset(index))
        self.forget(index)
        return self.buffer[:size]


@dataclass
class Net(Source):
    """A service on the loopback that takes its time."""

    port: int = 0
    delay_ns: int = 0

    def fetch(self, index: int) -> bytes:
        if "socket" not in self.__dict__:
            self.socket = socket.create_connection(("127.0.0.1", self.port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return request(self.socket, self.delay_ns, self.sample_bytes)


def request(connection: socket.socket, delay_ns: int, size_bytes: int) -> bytes:
    connection.sendall(REQUEST.pack(delay_ns, size_bytes))
    return connection.recv(size_bytes, socket.MSG_WAITALL)


def read_file(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        data = file.read()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return data


KINDS = {
    "none": Nothing,
    "read": Read,
    "small": Small,
    "big": Big,
    "mmap": Mmap,
    "mmap-held": MmapHeld,
    "direct": Direct,
    "uring": IoUring,
    "net": Net,
}


def make(folder: Path, sample_bytes: int, samples: int):
    """Writes the data set: `samples` files and one big one of the same bytes; what is there already stays."""
    done = folder / f"made-{sample_bytes}-{samples}"
    if done.exists():
        return
    (folder / FILES).mkdir(parents=True, exist_ok=True)
    data = os.urandom(sample_bytes)
    with open(folder / BIG, "wb") as big:
        for index in range(samples):
            (folder / FILES / f"{index:05}.bin").write_bytes(data)
            big.write(data)
    done.touch()
