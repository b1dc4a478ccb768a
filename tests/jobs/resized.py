"""Trains with a cache whose budget is turned meanwhile, until the file `stop` is there.

After each epoch a line of FOLDER/pool: the budget, what the pool has of the data set, and the hits of that epoch.

usage: resized.py FOLDER CACHE_BYTES
"""

import os
import sys

import torch

sys.path.insert(0, os.environ["STALLSCOPE_PYTHON"])

import stallscope  # noqa: E402

SAMPLES, BYTES, BATCH = 1000, 8192, 50


class Service(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        return index.to_bytes(4, "little") * (BYTES // 4)

    def decode(self, data):
        return torch.tensor([int.from_bytes(data[:4], "little")])


def main():
    folder, cache_bytes = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(3)
    loader = stallscope.DataLoader(
        Service(), batch_size=BATCH, shuffle=True, num_workers=1, cache=cache_bytes, fetchers=0
    )
    hits = 0
    with open(os.path.join(folder, "pool"), "a", buffering=1) as pool:
        while os.path.isdir(folder) and not os.path.exists(os.path.join(folder, "stop")):
            seen = [int(index) for batch in loader for index in batch.flatten()]
            assert sorted(seen) == list(range(SAMPLES)), "each sample once, whatever is turned"
            figures = loader.cache_figures()
            print(figures["capacity_bytes"], figures["kept_bytes"], figures["hits"] - hits, file=pool)
            hits = figures["hits"]


if __name__ == "__main__":
    main()
