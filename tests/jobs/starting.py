"""Saves after each epoch, for which new workers start, and says when each save was over; until a file `stop` is there."""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
model = torch.nn.Linear(512, 512)
loader = DataLoader(TensorDataset(torch.randn(24, 512)), batch_size=4, num_workers=2)
while not os.path.exists("stop"):
    for (batch,) in loader:
        time.sleep(0.005)
    torch.save(model.state_dict(), "next")
    os.rename("next", "model")
    print(time.monotonic_ns())
    sys.stdout.flush()
    os.mkdir("state")
    os.rmdir("state")
