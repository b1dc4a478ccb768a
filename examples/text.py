"""Trains a byte-level language model on the sources of Python's `email` package, with checkpoints.

stallscope run -- python text.py [FOLDER]

Checkpoints go to FOLDER. Started again after it was killed, the script goes on with the very next batch.
"""

import email
import sys
from pathlib import Path

import torch
from torch import nn

import stallscope

EPOCHS, BATCH_SIZE, LENGTH = 2, 64, 64


class Windows(torch.utils.data.Dataset):
    """Windows of so many bytes, each with the byte behind it; read from the files when they are asked for."""

    def __init__(self, folder):
        sizes = {path: path.stat().st_size for path in sorted(folder.glob("*.py"))}
        self.windows = [(path, at) for path, size in sizes.items() for at in range(0, size - LENGTH, LENGTH)]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        path, at = self.windows[index]
        with open(path, "rb") as file:
            file.seek(at)
            return torch.tensor(list(file.read(LENGTH + 1)))


def network(width=32):
    return nn.Sequential(nn.Embedding(256, width), nn.Flatten(), nn.Linear(LENGTH * width, 128), nn.ReLU(), nn.Linear(128, 256))


def main():
    loader = stallscope.DataLoader(Windows(Path(email.__file__).parent), BATCH_SIZE, shuffle=True, num_workers=2)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    folder = sys.argv[1] if len(sys.argv) > 1 else "text-checkpoints"
    with stallscope.Checkpointer(folder, model=model, optimizer=optimizer, loader=loader) as checkpointer:
        start = checkpointer.restore()
        for epoch in range(start.epoch if start else 0, EPOCHS):
            for text in loader:
                loss = nn.functional.cross_entropy(model(text[:, :-1]), text[:, -1])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                checkpointer.step()
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        checkpointer.save(wait=True)


if __name__ == "__main__":
    main()
