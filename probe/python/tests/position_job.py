"""Iterates loaders for three epochs, or stops and takes them up in other ones; prints what it got, a line a case.

usage: position_job.py '{"loader": "torch", "order": "shuffle", "workers": 2, "then": 0, "stops": [5]}'...
"""

import json
import random
import sys
import warnings

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import stallscope
from stallscope import _random
from stallscope.data.resume.given import position

EPOCHS = 3
READ = []


class Noisy(Dataset):
    """Samples with random augmentation, from both generators."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        READ.append(index)
        return torch.tensor([float(index), torch.rand(()).item(), random.random()])


class Batched(Noisy):
    def __getitems__(self, indices):
        return [Noisy.__getitem__(self, index) for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.tensor([float(n), 0.0, 0.0]) for n in range(23)])


class LazySampler:
    """Draws its order from the generator that training draws from as well: cannot be taken up."""

    def __iter__(self):
        for _ in range(23):
            yield int(torch.randint(23, ()))

    def __len__(self):
        return 23


def make(case, workers, seed):
    torch.manual_seed(seed)
    random.seed(seed)
    more = {
        "plain": {},
        "shuffle": {"shuffle": True},
        "generator": {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        "weighted": {"sampler": WeightedRandomSampler([1.0] * 23, 23)},
        "persistent": {"shuffle": True, "persistent_workers": True},
        "whole": {"shuffle": True, "batch_size": None},
        "batched": {"shuffle": True},
        "stream": {},
        "lazy": {"sampler": LazySampler()},
    }[case["order"]]
    dataset = {"batched": Batched, "stream": Stream}.get(case["order"], Noisy)()
    more.setdefault("batch_size", 4)
    own = case["loader"] == "stallscope"
    loader = (stallscope.DataLoader if own else DataLoader)(dataset, num_workers=workers, **more)
    return loader if own else position(loader)


def train(loader, stop=None):
    """What was handed over up to batch `stop`, and the state of everything then."""
    got = []
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            # As dropout would.
            torch.rand(3)
            got.append(batch.tolist())
            if len(got) == stop:
                return got, loader.state_dict(), _random.capture()
    return got, None, None


def outcome(case):
    whole, _, _ = train(make(case, case["workers"], 5))
    resumed = []
    for stop in case["stops"]:
        before, state, generators = train(make(case, case["workers"], 5), stop)
        loader = make(case, case["then"], 99)
        READ.clear()
        loader.load_state_dict(state)
        loader.go_on_with(generators)
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            after, _, _ = train(loader)
        messages = [str(one.message) for one in messages if issubclass(one.category, RuntimeWarning)]
        resumed.append({"got": before + after, "after": len(after), "read": len(READ), "messages": messages})
    return {"whole": whole, "resumed": resumed}


def main():
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        print(json.dumps(outcome(json.loads(case))), flush=True)


if __name__ == "__main__":
    main()
