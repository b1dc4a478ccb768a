"""A training script whose storage stops answering in the midst of an epoch: worker 1 opens a named pipe (first argument) that
nobody writes to. It goes on when somebody does."""

import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Hangs(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        if index == 206:
            with open(sys.argv[1], "rb") as pipe:
                pipe.read()
        return torch.tensor([index])


if __name__ == "__main__":
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=1e-6)
    total = 0
    for batch in DataLoader(Hangs(), batch_size=4, num_workers=2):
        optimiser.zero_grad()
        (weight * batch.float()).sum().backward()
        optimiser.step()
        total += int(batch.sum())
    print(f"sum {total}")
