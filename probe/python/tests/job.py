"""A training job without a model: iterates real DataLoaders in the ways that scripts do, and prints what it got.

usage: job.py SCENARIO...; each prints one JSON line: its name, how many loaders it used first, what came of it.
"""

import json
import random
import sys

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

SAMPLES, BATCH = 22, 4

# A loader that is still there can't be taken for one that a later scenario builds alike.
KEPT = []


def kept(*args, **kwargs):
    KEPT.append(DataLoader(*args, **kwargs))
    return KEPT[-1]


class Squares(Dataset):
    """Random augmentation shows whether anybody else draws from the generators."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        assert isinstance(self, Squares)
        info = get_worker_info()
        assert info is None or info.dataset is self
        return torch.rand(2) + index * index, random.random()


class Batched(Squares):
    def __getitems__(self, indices):
        return [Squares.__getitem__(self, index) for index in indices]

    def __getitem__(self, index):
        return torch.tensor([index]), 0.0


class Failing(Squares):
    def __getitem__(self, index):
        if index == 9:
            raise KeyError("sample 9 is broken")
        return torch.tensor([index])


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        # The workers' shares differ, so that one ends before the other.
        return iter([torch.tensor([n, random.randrange(99)]) for n in range(first, SAMPLES - 3, step)])


class Nesting(Squares):
    def __getitem__(self, index):
        return sum(batch.sum() for (batch,) in DataLoader(TensorDataset(torch.arange(6)), batch_size=3)) + index


def values(batch):
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [values(part) for part in batch]


def epochs(loader, count=2, limit=None):
    result = []
    for _ in range(count):
        for number, batch in enumerate(loader):
            if number == limit:
                break
            result.append(values(batch))
    return result


def plain(workers=0, dataset=Squares, **more):
    return epochs(kept(dataset(), batch_size=BATCH, shuffle=dataset is not Stream, num_workers=workers, **more))


def early_break(workers):
    return epochs(kept(Squares(), batch_size=BATCH, num_workers=workers), limit=3)


def failing(workers):
    try:
        return epochs(kept(Failing(), batch_size=BATCH, num_workers=workers))
    except KeyError as error:
        return str(error).splitlines()[0] if workers == 0 else "sample 9" in str(error)


def evaluation():
    train = kept(Squares(), batch_size=BATCH, num_workers=1)
    held_out = kept(TensorDataset(torch.arange(10)), batch_size=5)
    result = []
    for _ in range(2):
        result += epochs(train, count=1)
        with torch.no_grad():
            result += epochs(held_out, count=1)
    return result


def anew():
    result = []
    for _ in range(3):
        result += epochs(DataLoader(Squares(), batch_size=BATCH), count=1)
    return result


def side_by_side():
    first, second = (kept(Squares(), batch_size=size, num_workers=1) for size in (2, 4))
    return [[values(one), values(two)] for one, two in zip(first, second)]


def whole_batches():
    batches = TensorDataset(torch.arange(24).reshape(4, 6), torch.arange(24).reshape(4, 6))
    return epochs(kept(batches, batch_size=None, num_workers=1))


def out_of_order():
    loader = kept(Squares(), batch_size=BATCH, num_workers=3, in_order=False)
    return sorted(len(batch[0]) for batch in epochs(loader))


def dead_worker():
    class Dying(Squares):
        def __getitem__(self, index):
            if index == 9:
                import os

                os._exit(3)
            return torch.tensor([index])

    try:
        return epochs(kept(Dying(), batch_size=BATCH, num_workers=2))
    except (RuntimeError, OSError, EOFError):
        # torch says "exited unexpectedly", unless the hand-over breaks before it noticed.
        return "a worker died"


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(Squares(), batch_size=BATCH, num_workers=2)
    result = epochs(loader)
    return [result, sorted(loader.state_dict())]


def pinned():
    """Pretends that there is a device, so that the pin-memory thread runs; only copying is left out."""
    pins = sys.modules["torch.utils.data._utils.pin_memory"]
    saved = []
    for owner in (torch.cuda, getattr(torch, "accelerator", None)):
        for name, value in (("is_available", True), ("current_device", 0), ("current_device_index", 0),
                            ("set_device", None), ("set_device_index", None)):  # fmt: skip
            if owner is not None and hasattr(owner, name):
                saved.append((owner, name, getattr(owner, name)))
                setattr(owner, name, lambda *_, value=value: value)
    saved.append((pins, "pin_memory", pins.pin_memory))
    pins.pin_memory = lambda data, device=None: data
    try:
        return plain(2, pin_memory=True)
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)


SCENARIOS = {
    "map-0": (1, lambda: plain()),
    # Torch pins nothing where there is no device.
    "map-1": (1, lambda: plain(1, pin_memory=not torch.cuda.is_available())),
    "map-2": (1, lambda: plain(2)),
    "map-4": (1, lambda: plain(4, prefetch_factor=3)),
    "persistent-2": (1, lambda: plain(2, persistent_workers=True)),
    "getitems-0": (1, lambda: plain(0, Batched)),
    "getitems-2": (1, lambda: plain(2, Batched)),
    "stream-0": (1, lambda: plain(0, Stream)),
    "stream-2": (1, lambda: plain(2, Stream)),
    "stream-persistent-2": (1, lambda: plain(2, Stream, persistent_workers=True)),
    "break-0": (1, lambda: early_break(0)),
    "break-2": (1, lambda: early_break(2)),
    "failing-0": (1, lambda: failing(0)),
    "failing-2": (1, lambda: failing(2)),
    "dead-worker": (1, dead_worker),
    "pinned-2": (1, pinned),
    "evaluation": (2, evaluation),
    "anew": (1, anew),
    "side-by-side": (2, side_by_side),
    "whole-batches": (1, whole_batches),
    "nesting-0": (1, lambda: plain(0, Nesting)),
    "nesting-1": (1, lambda: plain(1, Nesting)),
    "out-of-order": (1, out_of_order),
    "stateful": (1, stateful),
    "spawn-2": (1, lambda: plain(2, multiprocessing_context="spawn")),
    "forkserver-1": (1, lambda: plain(1, multiprocessing_context="forkserver")),
}


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        torch.manual_seed(7)
        random.seed(7)
        loaders, scenario = SCENARIOS[name]
        print(json.dumps({"name": name, "loaders": loaders, "result": scenario()}), flush=True)
    print(json.dumps({"name": "end", "loaders": 0, "result": [torch.rand(2).tolist(), random.random()]}))


if __name__ == "__main__":
    main()
