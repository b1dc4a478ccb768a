"""An ordinary small training script: two workers, one epoch after another, a checkpoint at the end."""

import argparse
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((8,), float(index)), torch.tensor([float(index) ** 2])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save")
    parser.add_argument("--until", help="ends with the epoch in which this file is there")
    parser.add_argument("--exit", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Squares(), batch_size=4, shuffle=True, num_workers=arguments.workers)
    total = 0.0
    for _ in range(arguments.epochs):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item()
        if arguments.save:
            torch.save(model.state_dict(), arguments.save)
        if arguments.until and os.path.exists(arguments.until):
            break
    print(f"total loss {total:.6f}")
    sys.exit(arguments.exit)


if __name__ == "__main__":
    main()
