"""Iterates a loader over samples of a file on slow storage, and tells how long that took and what was read.

Nothing learns here: the losses are drawn once for each sample, some ten times as large as most.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "target" / "python"))

import torch  # noqa: E402

import stallscope  # noqa: E402

SAMPLE_BYTES = 100 << 10


class Samples(torch.utils.data.Dataset):
    def __init__(self, path):
        self.path = path
        self.count = os.stat(path).st_size // SAMPLE_BYTES
        self.file = None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.decode(bytearray(self.fetch(index)))

    def fetch(self, index):
        if self.file is None:
            self.file = os.open(self.path, os.O_RDONLY)
        at = index * SAMPLE_BYTES
        data = os.pread(self.file, SAMPLE_BYTES, at)
        # As of a data set that is larger than the memory: the page cache has none of it the next time.
        os.posix_fadvise(self.file, at, SAMPLE_BYTES, os.POSIX_FADV_DONTNEED)
        return data

    def decode(self, data):
        return torch.frombuffer(data, dtype=torch.uint8)[:64].clone()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--cache", type=int, default=0, help="bytes")
    parser.add_argument("--sampling", default="plain")
    parser.add_argument("--uses", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(7)
    samples = Samples(options.file)
    more = {"sampling_options": {"uses": options.uses}} if options.sampling == "reuse" else {}
    loader = stallscope.DataLoader(
        samples, batch_size=32, shuffle=True, num_workers=4, cache=options.cache or None, sampling=options.sampling, **more
    )
    losses = torch.empty(len(samples)).log_normal_(0.0, 1.0)
    began = time.monotonic()
    uses = 0
    for _ in range(options.epochs):
        for _, ids, _ in loader.weighted():
            loader.update(ids, losses[ids])
            uses += len(ids)
    result = {"seconds": time.monotonic() - began, "uses": uses, "figures": loader.cache_figures()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
