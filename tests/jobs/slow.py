"""A training script whose data comes slowly, or fast enough; runs until the file `stop` is there, or for so many seconds.

Ends with its account: whether every sample came exactly once in each whole epoch.
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--wait-ms", type=float, default=10, help="for a sample")
    parser.add_argument("--step-ms", type=float, default=10, help="of the trainer's own, for a batch")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cache", help="of stallscope's loader, such as 4MiB")
    parser.add_argument("--seconds", type=float, default=120)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = Slow(arguments.samples, arguments.wait_ms)
    settings = {"batch_size": 4, "shuffle": True, "num_workers": arguments.workers}
    loader = stallscope.DataLoader(data, cache=arguments.cache, **settings) if arguments.cache else DataLoader(data, **settings)
    until = time.monotonic() + arguments.seconds
    wrong = whole = 0
    over = False
    while not over:
        seen = []
        for batch in loader:
            # A device at work.
            time.sleep(arguments.step_ms / 1000)
            seen += batch.flatten().tolist()
            over = time.monotonic() > until or Path("stop").exists()
            if over:
                break
        else:
            whole += 1
            wrong += sorted(seen) != list(range(arguments.samples))
    print(f"{whole} whole epochs, {wrong} of them wrong", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
