"""Trains on samples that a service gives, with a cache; prints the hits of each epoch, and the figures at the end.

usage: cached.py SAMPLING WORKERS CACHE_BYTES EPOCHS [TRACE]
"""

import json
import os
import sys
import time

import torch

sys.path.insert(0, os.environ["STALLSCOPE_PYTHON"])

import stallscope  # noqa: E402

SAMPLES, BYTES, BATCH = 2000, 1024, 50


class Service(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        time.sleep(0.0005)
        return index.to_bytes(4, "little") * (BYTES // 4)

    def decode(self, data):
        return torch.tensor([float(int.from_bytes(data[:4], "little"))])


def main():
    sampling, workers, cache_bytes, epochs = sys.argv[1], *map(int, sys.argv[2:5])
    trace = sys.argv[5] if len(sys.argv) > 5 else None
    torch.manual_seed(3)
    # Without fetchers the whole of the cache is what the curve is of.
    loader = stallscope.DataLoader(
        Service(), batch_size=BATCH, num_workers=workers, shuffle=True, cache=cache_bytes, sampling=sampling,
        cache_trace=trace, fetchers=0,
    )  # fmt: skip
    hits, used, before = [], [], 0
    for _ in range(epochs):
        for batch, ids, _ in loader.weighted():
            assert batch[:, 0].long().tolist() == ids.tolist()
            used += ids.tolist()
            loader.update(ids, (ids * 7 % 13).float())
        found = loader.cache_figures()["hits"]
        hits.append(found - before)
        before = found
    print(json.dumps({"hits": hits, "used": used, "figures": loader.cache_figures()}))


if __name__ == "__main__":
    main()
