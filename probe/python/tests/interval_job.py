"""Ranks that train with a Checkpointer until a file STOP lies in FOLDER; each prints the interval that it goes by at its end.

usage: interval_job.py FOLDER RANKS [RANK]
"""

import json
import os
import subprocess
import sys

folder, ranks = sys.argv[1], int(sys.argv[2])
if len(sys.argv) == 3:
    children = []
    for rank in range(ranks):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)}
        children.append(subprocess.Popen([sys.executable, __file__, folder, str(ranks), str(rank)], env=env))
    sys.exit(max(child.wait() for child in children))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import stallscope  # noqa: E402

rank = int(sys.argv[3])
torch.set_num_threads(1)
if ranks > 1:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
model = torch.nn.Linear(4, 1)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
ckpt = stallscope.Checkpointer(os.path.join(folder, "ckpts"), model=model, every="3s")
ended = torch.zeros(1)
while not ended.item():
    for (batch,) in loader:
        model(batch).sum().backward()
        model.zero_grad()
        ckpt.step()
    # Ranks end together.
    ended += os.path.exists(os.path.join(folder, "STOP"))
    if ranks > 1:
        dist.all_reduce(ended)
os.write(1, (json.dumps({"rank": rank, "interval": ckpt.costs["interval"]}) + "\n").encode())
ckpt.close()
