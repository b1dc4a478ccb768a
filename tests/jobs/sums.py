"""Trains a small network on samples that come slowly, and prints a digest of its weights after each epoch: until the file `stop` is
there, or for so many epochs. What it prints depends on its seed alone.
"""

import argparse
import hashlib
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __init__(self, samples, wait_ms):
        self.samples, self.wait_s = samples, wait_ms / 1000

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        return torch.full((8,), float(index)) / self.samples, torch.tensor([float(index % 3)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--wait-ms", type=float, default=8, help="for a sample")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    network = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loader = DataLoader(Slow(64, arguments.wait_ms), batch_size=4, shuffle=True, num_workers=arguments.workers)
    for _ in range(arguments.epochs):
        for values, wanted in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(network(values), wanted).backward()
            optimizer.step()
        weights = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
        print(hashlib.sha256(weights).hexdigest(), flush=True)
        if Path("stop").exists():
            break


if __name__ == "__main__":
    main()
