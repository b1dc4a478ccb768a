"""A training script whose samples take a known time without a CPU; prints the mean of its steady steps in milliseconds.

Either each sample takes its time, however many workers wait, or all of them queue at one source, which is a lock in a file.
"""

import argparse
import fcntl
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Paced(Dataset):
    def __init__(self, samples, wait_ms, source):
        self.samples, self.wait_s, self.source = samples, wait_ms / 1000, source
        self.lock = None

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if not self.source:
            time.sleep(self.wait_s)
            return torch.tensor([index])
        if self.lock is None:
            # A lock belongs to its opening: one for each worker.
            self.lock = os.open(self.source, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        time.sleep(self.wait_s)
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        return torch.tensor([index])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--wait-ms", type=float, default=20, help="for a sample")
    parser.add_argument("--source", help="the file with the lock")
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
