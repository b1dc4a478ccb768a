"""Saves in every place where scripts do: in the loop with fsync and rename, two files at once, between epochs, after training, in a thread;
and evaluates after each epoch."""

import os
import sys
import threading

import torch
from torch.utils.data import DataLoader, TensorDataset

folder = sys.argv[1]
os.makedirs(folder)
torch.set_num_threads(1)
model = torch.nn.Linear(1024, 1024)
train = DataLoader(TensorDataset(torch.randn(40, 1024)), batch_size=4, num_workers=1)
check = DataLoader(TensorDataset(torch.randn(12, 1024)), batch_size=4, num_workers=1)


def save(name):
    path = os.path.join(folder, name)
    torch.save(model.state_dict(), path + ".next")
    with open(path + ".next", "rb") as file:
        os.fsync(file.fileno())
    os.rename(path + ".next", path)


for epoch in range(2):
    for step, (batch,) in enumerate(train):
        model(batch).sum().backward()
        model.zero_grad()
        if step == 5:
            # One checkpoint of two files.
            save("model")
            save("optimiser")
    with torch.no_grad():
        for (batch,) in check:
            model(batch)
    if epoch == 0:
        save("epoch")
        writer = threading.Thread(target=save, args=("thread",))
        writer.start()
        writer.join()
save("last")
