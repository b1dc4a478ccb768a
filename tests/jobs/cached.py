"""Trains on samples that a service gives, with a cache; prints the hits of each epoch, and the figures at the end.

usage: cached.py SAMPLING WORKERS CACHE_BYTES EPOCHS [TRACE]

With RANK, WORLD_SIZE and MEETING, a file where ranks find each other, it is one of several ranks.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, os.environ["STALLSCOPE_PYTHON"])

import stallscope  # noqa: E402

SAMPLES, BYTES, BATCH = 2000, 1024, 50


class Service(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        time.sleep(0.0002)
        return index.to_bytes(4, "little") * (BYTES // 4)

    def decode(self, data):
        return torch.tensor([float(int.from_bytes(data[:4], "little"))])


def main():
    sampling, workers, cache_bytes, epochs = sys.argv[1], *map(int, sys.argv[2:5])
    trace = sys.argv[5] if len(sys.argv) > 5 else None
    torch.manual_seed(3)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    order = {"shuffle": True}
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=ranks)
        order = {"sampler": torch.utils.data.DistributedSampler(Service(), ranks, rank)}
    # Without fetchers the whole of the cache is what the curve is of.
    loader = stallscope.DataLoader(
        Service(), batch_size=BATCH, num_workers=workers, cache=cache_bytes, sampling=sampling,
        cache_trace=trace, fetchers=0, **order,
    )  # fmt: skip
    hits, misses, used, before = [], [], [], (0, 0)
    for epoch in range(epochs):
        if ranks > 1:
            order["sampler"].set_epoch(epoch)
        for batch, ids, _ in loader.weighted():
            assert batch[:, 0].long().tolist() == ids.tolist()
            used += ids.tolist()
            loader.update(ids, (ids * 7 % 13).float())
            if ranks > 1:
                # As gradients are summed up.
                dist.all_reduce(torch.ones(1))
        figures = loader.cache_figures()
        found = figures["hits"], figures["misses"]
        hits.append(found[0] - before[0])
        misses.append(found[1] - before[1])
        before = found
    if ranks > 1:
        dist.barrier()
    print(json.dumps({"hits": hits, "misses": misses, "used": used, "figures": loader.cache_figures()}))


if __name__ == "__main__":
    main()
