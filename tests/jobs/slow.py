"""A training script whose data comes slowly, or fast enough; runs until the file `stop` is there, or for so many seconds.

Ends with its account: whether every sample came exactly once in each whole epoch; with a sampling of stallscope's, whether each that
was drawn came as what it is, with a weight.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import stallscope


class Slow(Dataset):
    """Waits for each sample as for a file far away: other workers can do so meanwhile. With a cache 16 KiB of each are kept."""

    def __init__(self, samples, wait_ms):
        self.samples, self.wait_s = samples, wait_ms / 1000

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return self.decode(self.fetch(index))

    def fetch(self, index):
        time.sleep(self.wait_s)
        return index.to_bytes(16 << 10, "little")

    def decode(self, raw):
        return torch.tensor([int.from_bytes(raw, "little")])


class Files(Slow):
    """The same from a file each, which is opened for every sample."""

    def __init__(self, samples, wait_ms):
        super().__init__(samples, wait_ms)
        self.folder = Path("samples")
        self.folder.mkdir()
        for index in range(samples):
            (self.folder / str(index)).write_bytes(index.to_bytes(16 << 10, "little"))

    def fetch(self, index):
        time.sleep(self.wait_s)
        with open(self.folder / str(index), "rb") as file:
            return file.read()


class Weighted:
    """Batches as another sampling draws them, of which one sample in ten is harder than the others."""

    def __init__(self, loader):
        self.loader = loader
        self.wrong = 0

    def __iter__(self):
        for batch, ids, weights in self.loader.weighted():
            self.loader.update(ids, 0.1 + 2.0 * (ids % 10 == 0))
            self.wrong += batch.flatten().tolist() != ids.tolist() or not bool((weights > 0).all())
            yield batch


class Saver:
    """A checkpointer whose saves hold training up for a while each, as of a state that takes long to gather."""

    def __init__(self, every, blocked_ms):
        self.blocked_s = blocked_ms / 1000
        # The weights are there for the checkpointer to have tensors.
        weights = torch.nn.Linear(4, 4)
        self.checkpointer = stallscope.Checkpointer(
            "checkpoints", model=weights, gathered=self, every=every, overhead=0.05, mtbf="2m"
        )

    def state_dict(self):
        time.sleep(self.blocked_s)
        return {}

    def load_state_dict(self, state):
        pass

    def step(self):
        self.checkpointer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--wait-ms", type=float, default=10, help="for a sample")
    parser.add_argument("--step-ms", type=float, default=10, help="of the trainer's own, for a batch")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--files", action="store_true", help="a file for each sample")
    parser.add_argument("--cache", help="of stallscope's loader, such as 4MiB")
    parser.add_argument("--sampling", help="of the loader with a cache, such as importance")
    parser.add_argument("--save-every", help="with a stallscope.Checkpointer, such as 1s")
    parser.add_argument("--save-ms", type=float, default=300, help="that each save blocks")
    parser.add_argument("--seconds", type=float, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = (Files if arguments.files else Slow)(arguments.samples, arguments.wait_ms)
    settings = {"batch_size": 4, "shuffle": True, "num_workers": arguments.workers}
    sampling = arguments.sampling or "plain"
    loader = stallscope.DataLoader(data, cache=arguments.cache, sampling=sampling, **settings) if arguments.cache else DataLoader(data, **settings)
    weighted = Weighted(loader) if arguments.sampling else None
    saver = Saver(arguments.save_every, arguments.save_ms) if arguments.save_every else None
    until = time.monotonic() + arguments.seconds
    wrong = whole = 0
    over = False
    while not over:
        seen = []
        for batch in weighted or loader:
            # A device at work.
            time.sleep(arguments.step_ms / 1000)
            if saver:
                saver.step()
            seen += batch.flatten().tolist()
            over = time.monotonic() > until or Path("stop").exists()
            if over:
                break
        else:
            whole += 1
            if not weighted:
                wrong += sorted(seen) != list(range(arguments.samples))
    if weighted:
        wrong += weighted.wrong
    print(f"{whole} whole epochs, {wrong} of them wrong", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
