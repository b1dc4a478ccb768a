"""Data sets of small files, as `cached_job.py` iterates them. A module of its own: spawned workers import it."""

import mmap
import os
import random
import signal
import threading
from pathlib import Path

import torch
from torch.utils.data import Dataset

FILES = 23


def fill(folder, size=1000):
    """`FILES` files, each unlike the others."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    for n in range(FILES):
        (folder / f"{n:02}").write_bytes(bytes([n]) * (size + n))


class Files(Dataset):
    """A file a sample."""

    def __init__(self, folder, count=FILES):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))[:count]]

    def __len__(self):
        return len(self.paths)

    def read(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read()

    def __getitem__(self, index):
        data = self.read(index)
        return index, len(data), data[-1]


class Augmented(Files):
    """With draws from torch, from Python and from a generator of its own."""

    def __init__(self, folder):
        super().__init__(folder)
        self.own = random.Random(7)

    def __getitem__(self, index):
        drawn = torch.rand(()).item(), random.random()
        if torch.utils.data.get_worker_info() is None:
            # In a worker it depends on the worker.
            drawn += (self.own.random(),)
        return (*super().__getitem__(index), *drawn)


class Parts(Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return FILES

    def fetch(self, index):
        return Path(self.folder, f"{index:02}").read_bytes()

    def decode(self, data):
        # May be written to, and is nobody else's.
        data[0] += 1
        return len(data), data[0], torch.rand(()).item()

    def __getitem__(self, index):
        return self.decode(bytearray(self.fetch(index)))


class Memory(Files):
    def __init__(self, folder):
        super().__init__(folder)
        self.all = [super(Memory, self).read(index) for index in range(FILES)]

    def read(self, index):
        return self.all[index]


class Two(Files):
    def read(self, index):
        return super().read(index) + super().read((index + 1) % FILES)


class Pairs(Files):
    """Samples of two files each, of which no two have one in common."""

    def __len__(self):
        return super().__len__() // 2

    def read(self, index):
        return super().read(index) + super().read(index + len(self))


class One(Files):
    """All samples lie in one file, which a process opens for good."""

    def __init__(self, folder):
        super().__init__(folder)
        self.path = os.path.join(folder, "one")
        Path(self.path).write_bytes(b"".join(Path(path).read_bytes()[:1000] for path in self.paths))
        self.reader = type("Reader", (), {})()
        self.reader.file = None

    def read(self, index):
        if self.reader.file is None:
            self.reader.file = open(self.path, "rb")
        # A process that shares the position with another reads what the other one wanted.
        self.reader.file.seek(index * 1000)
        return self.reader.file.read(1000)


class Text(Files):
    def read(self, index):
        with open(self.paths[index]) as file:
            return file.read().encode()


class Mapped(Files):
    def read(self, index):
        with open(self.paths[index], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return mapped[:]


class Headers(Files):
    """Reads the first bytes of large files."""

    def __init__(self, folder):
        for path in Path(folder).iterdir():
            with open(path, "ab") as file:
                file.truncate(200_000)
        super().__init__(folder)

    def read(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read(20)


class Threaded(Files):
    def read(self, index):
        got = []
        thread = threading.Thread(target=lambda: got.append(super(Threaded, self).read(index)))
        thread.start()
        thread.join()
        return got[0]


class Whole(Files):
    """Makes a batch at once, in the order of its indices."""

    def __getitems__(self, indices):
        noise = torch.rand(()).item()
        return [(*self[index], noise) for index in indices]


class Backwards(Files):
    """Makes a batch at once, and reads it from its end."""

    def __getitems__(self, indices):
        return [self[index] for index in reversed(indices)][::-1]


class Pathlib(Files):
    def read(self, index):
        return Path(self.paths[index]).read_bytes()


class Relative(Files):
    def read(self, index):
        with open(os.path.relpath(self.paths[index]), mode="rb", buffering=0) as file:
            return file.read()


class First(Files):
    """Opens another file with its first sample, and never again."""

    classes = None

    def read(self, index):
        if self.classes is None:
            with open(self.paths[5], "rb") as file:
                self.classes = file.read()
        return super().read(index)


class Fussy(Files):
    """Takes a file's bytes from memory on trial, and not always later."""

    def read(self, index):
        with open(self.paths[index], "rb") as file:
            if index % 5 == 3:
                file.fileno()
            return file.read()


class Vanishing(Files):
    def __init__(self, folder):
        super().__init__(folder)
        os.unlink(self.paths[7])


class Broken(Files):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if index == 7:
            raise ZeroDivisionError(f"sample {index} is broken")
        return sample


class Unreliable(Parts):
    """Its source fails for a while, and for sample 9 for good."""

    def __init__(self, folder):
        super().__init__(folder)
        self.fails = {4: 2, 9: 99}

    def fetch(self, index):
        if self.fails.get(index, 0):
            self.fails[index] -= 1
            raise ConnectionResetError(f"sample {index} cannot be had")
        return super().fetch(index)


class Killing(Parts):
    """The first worker that reads sample 7 is killed in the midst of it, while others wait for what it reads."""

    def __init__(self, folder):
        super().__init__(folder)
        self.done = folder + "-killed"

    def fetch(self, index):
        data = super().fetch(index)
        if index == 7 and torch.utils.data.get_worker_info() is not None and not os.path.exists(self.done):
            Path(self.done).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return data


class NotBytes(Parts):
    def fetch(self, index):
        return [index]

    def decode(self, data):
        return data[0], 0, 0

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


class SometimesNotBytes(Parts):
    def fetch(self, index):
        return super().fetch(index) if index % 2 == 0 and index != 4 or index == FILES // 2 else str(index)

    def decode(self, data):
        return len(data), 0, 0

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


class Strange(Parts):
    """Its fetch and decode are something else."""

    # As those of a class above would not stand for its samples.
    fetch, decode = Parts.fetch, Parts.decode

    def __getitem__(self, index):
        return (*super().__getitem__(index), "and more")


class Named(Parts):
    """Knows its samples by numbers, by names, by pairs of a number and a size, and by numbers from the end."""

    fetch, decode = Parts.fetch, Parts.decode

    def __getitem__(self, index):
        if isinstance(index, str):
            return super().__getitem__(int(index))
        if isinstance(index, tuple):
            return (*super().__getitem__(index[0]), index[1])
        return super().__getitem__(index % FILES)


class Alone(Parts):
    """Its fetch and decode are all it has."""

    __getitem__ = Dataset.__getitem__


class Typed(Files):
    """Looks at what it reads from."""

    def read(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read() + type(file).__name__.encode()


class Timed(Augmented):
    """No two samples are the same, for reasons of its own."""

    count = 0

    def __getitem__(self, index):
        self.count += 1
        return (*super().__getitem__(index), self.count)


class KeyedFiles(Files):
    def __getitem__(self, key):
        return super().__getitem__(int(str(key).split()[-1]))


# Name -> how it is made from a folder, and further arguments of its loader.
SETS = {
    name: (make, {})
    for name, make in {
        "memory": Memory, "two": Two, "pairs": Pairs, "one": One, "text": Text, "mapped": Mapped, "headers": Headers,
        "threaded": Threaded, "whole": Whole, "backwards": Backwards, "pathlib": Pathlib, "relative": Relative,
        "first": First, "fussy": Fussy, "vanishing": Vanishing, "broken": Broken, "unreliable": Unreliable,
        "not-bytes": NotBytes, "sometimes-not-bytes": SometimesNotBytes,
        "strange": Strange, "alone": Alone, "typed": Typed, "timed": Timed,
    }.items()
}  # fmt: skip
SETS["single"] = (lambda folder: Files(folder, 1), {})
