"""A training script whose samples take a known time without a CPU; prints the mean of its steady steps in milliseconds.

Either each sample takes its time, however many workers wait, or all of them queue at one source, which serves one after the
other, first come, first served, as a disk does, and goes on while a worker that it has served waits for a CPU.
"""

import argparse
import fcntl
import os
import struct
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Paced(Dataset):
    def __init__(self, samples, wait_ms, source):
        self.samples, self.wait_s, self.source = samples, wait_ms / 1000, source
        self.queue = None

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if not self.source:
            time.sleep(self.wait_s)
            return torch.tensor([index])
        time.sleep(max(0.0, self.served_at() - time.monotonic()))
        return torch.tensor([index])

    def served_at(self):
        """When the source will have served this sample; the file holds when it will have served all before it."""
        if self.queue is None:
            # A lock belongs to its opening: one for each worker.
            self.queue = os.open(self.source, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.queue, fcntl.LOCK_EX)
        (free,) = struct.unpack("d", os.pread(self.queue, 8, 0).ljust(8, b"\0"))
        served = max(free, time.monotonic()) + self.wait_s
        os.pwrite(self.queue, struct.pack("d", served), 0)
        fcntl.flock(self.queue, fcntl.LOCK_UN)
        return served


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--wait-ms", type=float, default=20, help="for a sample")
    parser.add_argument("--source", help="the file with the queue of the source")
    parser.add_argument("--steps", type=int, default=90)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warm_up = 10
    data = Paced(4 * (arguments.steps + warm_up), arguments.wait_ms, arguments.source)
    began = None
    for step, _ in enumerate(DataLoader(data, batch_size=4, num_workers=arguments.workers)):
        # A device at work.
        time.sleep(0.005)
        if step == warm_up:
            began = time.monotonic()
    print((time.monotonic() - began) / (arguments.steps - 1) * 1000)


if __name__ == "__main__":
    main()
