"""Saves twice into a folder that then turns into a file: the two saves after that fail, and training goes on."""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, os.environ["STALLSCOPE_PYTHON"])

import stallscope  # noqa: E402

folder = sys.argv[1]
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
loader = DataLoader(TensorDataset(torch.randn(40, 64)), batch_size=4)
checkpointer = stallscope.Checkpointer(folder, model=model, every=1000, keep=1)
for step, (batch,) in enumerate(loader):
    model(batch).sum().backward()
    model.zero_grad()
    checkpointer.step()
    if step == 4:
        # Reading back would fail as well until, last of all, it has removed the checkpoint before.
        while os.path.exists(os.path.join(folder, "step-000000003")):
            time.sleep(0.01)
        os.rename(folder, folder + ".gone")
        with open(folder, "w"):
            pass
    if step in (2, 3, 6, 8):
        try:
            checkpointer.save(wait=True)
        except stallscope.CheckpointError as error:
            print(error)
print("trained to the end")
