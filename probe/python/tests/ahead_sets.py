"""Data sets that log each read of their source, for `ahead_job.py`."""

import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path

import torch
from torch.utils.data import Dataset, get_worker_info

SAMPLES = 603


class Logged(Dataset):
    """A source of `delay_s` a read."""

    def __init__(self, folder, delay_s=0.0, samples=SAMPLES):
        self.folder, self.delay_s, self.samples = folder, delay_s, samples
        # All processes append to it, each record in one write.
        self.log = os.open(os.path.join(folder, "log"), os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def __len__(self):
        return self.samples

    def read(self, index):
        os.write(self.log, index.to_bytes(4, "little"))
        time.sleep(self.delay_s)
        return index.to_bytes(4, "little") * (200 + index % 7)

    def begin(self):
        os.ftruncate(self.log, 0)

    def reads(self):
        """How often each sample was read since `begin`."""
        data = Path(self.folder, "log").read_bytes()
        return Counter(int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4))


class Parts(Logged):
    def fetch(self, index):
        return self.read(index)

    def decode(self, data):
        return torch.tensor([int.from_bytes(data[:4], "little"), len(data), torch.rand(()).item()])

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


class Locked(Parts):
    """All processes read one after the other."""

    def __init__(self, folder, **more):
        super().__init__(folder, **more)
        self.lock = multiprocessing.Lock()

    def fetch(self, index):
        with self.lock:
            return super().fetch(index)


class Hanging(Parts):
    """Some reads of a fetcher never end."""

    def __init__(self, folder, **more):
        super().__init__(folder, **more)
        # Nobody writes to it, and it has no end.
        self.never = os.pipe()

    def fetch(self, index):
        info = get_worker_info()
        if index >= 20 and info is not None and info.id >= 2:
            Path(self.folder, f"{os.getpid()}.hangs").touch()
            os.read(self.never[0], 1)
        return super().fetch(index)

    def hanging(self):
        """The processes that do."""
        return [int(path.stem) for path in Path(self.folder).glob("*.hangs")]


class Failing(Parts):
    def fetch(self, index):
        data = super().fetch(index)
        if index % 10 == 3:
            raise ZeroDivisionError(f"sample {index} is broken")
        return data


class Files(Logged):
    """A file a sample."""

    def __init__(self, folder, **more):
        super().__init__(folder, **more)
        for index in range(self.samples):
            Path(folder, f"{index}.bin").write_bytes(self.data(index))

    def data(self, index):
        return index.to_bytes(4, "little") * (200 + index % 7)

    def open(self, index):
        with open(os.path.join(self.folder, f"{index}.bin"), "rb") as file:
            return file.read()

    def __getitem__(self, index):
        data = self.open(index)
        return torch.tensor([int.from_bytes(data[:4], "little"), len(data), torch.rand(()).item()])


class Swallowing(Files):
    """Goes on whatever happens, and tries again."""

    def open(self, index):
        for _ in range(6):
            try:
                return super().open(index)
            except BaseException:
                continue
        return self.data(index)
