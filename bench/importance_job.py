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
    def __init__(self, path, sample_bytes):
        self.path = path
        self.sample_bytes = sample_bytes
        self.count = os.stat(path).st_size // sample_bytes
        self.file = None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.decode(bytearray(self.fetch(index)))

    def fetch(self, index):
        if self.file is None:
            self.file = os.open(self.path, os.O_RDONLY)
        at = index * self.sample_bytes
        data = os.pread(self.file, self.sample_bytes, at)
        # As of a data set that is larger than the memory: the page cache has none of it the next time.
        os.posix_fadvise(self.file, at, self.sample_bytes, os.POSIX_FADV_DONTNEED)
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
    parser.add_argument("--sample-bytes", type=int, default=SAMPLE_BYTES)
    parser.add_argument("--packages", help="a folder")
    parser.add_argument("--from-epoch", type=int, default=0, help="of those that are counted")
    options = parser.parse_args()
    torch.manual_seed(7)
    samples = Samples(options.file, options.sample_bytes)
    more = {"sampling_options": {"uses": options.uses}} if options.sampling == "reuse" else {}
    if options.packages:
        more["packages"] = options.packages
    loader = stallscope.DataLoader(
        samples, batch_size=32, shuffle=True, num_workers=4, cache=options.cache or None, sampling=options.sampling, **more
    )
    losses = torch.empty(len(samples)).log_normal_(0.0, 1.0)
    began, before = time.monotonic(), {}
    uses = 0
    for epoch in range(options.epochs):
        if epoch == options.from_epoch:
            began, before, uses = time.monotonic(), loader.cache_figures(), 0
        for _, ids, _ in loader.weighted():
            loader.update(ids, losses[ids])
            uses += len(ids)
    figures = loader.cache_figures()
    counted = {name: value - before.get(name, 0) for name, value in figures.items() if type(value) is int}
    result = {"seconds": time.monotonic() - began, "uses": uses, "figures": counted}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
