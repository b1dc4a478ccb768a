"""Jobs for which workers that are added may be the wrong thing; turned from outside like those of resizing.py, and as that used.

usage: adding.py BATCHES SCENARIO...
"""

import os
import subprocess
import tempfile
import time

import resizing
import torch
from resizing import WORKERS, Numbers, epochs, loader, report, step, values
from torch.utils.data import get_worker_info


class Table(Numbers):
    """Knows as many workers as its script has."""

    def __init__(self, batches):
        super().__init__(batches)
        self.opened = [torch.zeros(1)] * WORKERS

    def __getitem__(self, index):
        return super().__getitem__(index) + self.opened[get_worker_info().id].long()


class Recorded(Numbers):
    """Has its samples in a file, of which it reads one after it has gone there."""

    def __init__(self, batches):
        super().__init__(batches)
        self.file = tempfile.TemporaryFile(buffering=0)
        self.file.write(b"".join(index.to_bytes(8, "little") for index in range(self.samples)))

    def __getitem__(self, index):
        self.file.seek(8 * index)
        time.sleep(0.001)
        return super().__getitem__(int.from_bytes(self.file.read(8), "little"))


class Numbered(Recorded):
    """The same with nothing but the file's descriptor, as a library in C has it."""

    def __init__(self, batches):
        super().__init__(batches)
        self.descriptor = os.dup(self.file.fileno())
        self.file.close()

    def __getitem__(self, index):
        os.lseek(self.descriptor, 8 * index, os.SEEK_SET)
        time.sleep(0.001)
        return Numbers.__getitem__(self, int.from_bytes(os.read(self.descriptor, 8), "little"))


class Sequential(Numbers):
    """Gives what comes next."""

    def __init__(self, batches):
        super().__init__(batches)
        self.following = iter(range(self.samples))

    def __getitem__(self, index):
        return super().__getitem__(next(self.following))


def piped(batches):
    """Writes to a process that ends when there is nothing more to read, from before workers are added until after."""
    numbers = loader(batches)
    iterator, got = iter(numbers), []
    reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    for batch in iterator:
        got += values(batch)
        added = len(iterator._workers) > WORKERS
        if added and not reader.stdin.closed:
            reader.stdin.close()
            try:
                report(ended=reader.wait(30))
            except subprocess.TimeoutExpired:
                reader.kill()
                report(ended=None)
        step()
    report(got=got)


SCENARIOS = {
    "table": lambda n: epochs(loader(n, Table)),
    "recorded": lambda n: epochs(loader(n, Recorded, num_workers=1)),
    "numbered": lambda n: epochs(loader(n, Numbered, num_workers=1)),
    "sequential": lambda n: epochs(loader(n, Sequential, num_workers=1), count=1),
    "piped": piped,
}


if __name__ == "__main__":
    resizing.main(SCENARIOS)
