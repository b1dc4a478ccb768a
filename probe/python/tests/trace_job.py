"""Iterates a loader that records a trace; prints what was used and what was warned of.

usage: trace_job.py FILE CASE WORKERS
"""

import json
import os
import resource
import sys
import warnings

import torch
from torch.utils.data import Dataset, IterableDataset, Subset

import stallscope

SAMPLES, BATCH, EPOCHS = 100, 10, 3


class Parts(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.decode(self.fetch(index))

    def fetch(self, index):
        return index.to_bytes(4, "little") + bytes(96 + index)

    def decode(self, data):
        return torch.tensor([float(int.from_bytes(data[:4], "little"))])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(20))


def forked():
    """A child that ends as Python does."""
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)


def main():
    path, case, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(3)
    if case == "stream":
        try:
            stallscope.DataLoader(Stream(), cache_trace=path)
        except ValueError as error:
            return {"raised": str(error)}
    if case == "rank":
        os.environ["RANK"] = "3"
    if case == "full":
        # As a full disk, all of a sudden, for this file.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
    dataset = Subset(Parts(), range(50, SAMPLES)) if case == "subset" else Parts()
    loader = stallscope.DataLoader(
        dataset, batch_size=BATCH, num_workers=workers, shuffle=True, cache_trace=path,
        **({} if case in ("uncached", "full") else {"cache": "4KB"}),
        sampling="importance" if case == "importance" else "plain",
    )  # fmt: skip
    used, epochs = [], 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(EPOCHS):
            for batch, ids, _ in loader.weighted():
                used += batch[:, 0].long().tolist()
                loader.update(ids, (ids % 7).float() + 1)
                if case == "forked" and len(used) == 20:
                    forked()
            if case == "swapped" and not epochs:
                os.rename(path, f"{path}.old")
                os.symlink("thesis", path)
            epochs += 1
    messages = [str(one.message) for one in warned if "stallscope" in str(one.message)]
    return {"used": used, "messages": messages, "epochs": epochs}


if __name__ == "__main__":
    print(json.dumps(main()))
