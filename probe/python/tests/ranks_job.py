"""Ranks that train one model with gloo, or each its shard of a state; each prints a line at its start and its end.

usage: ranks_job.py FOLDER '{"ranks": 2, "stop": 8, "sharded": false}'

"uneven": rank 1 has more batches than rank 0, within torch's Join, and all save between two epochs.
"alone": what rank 1 has alone, "model" or "object": another model than rank 0's, or one more object.
"unsaved": the step from which on the state has something that cannot be saved.
"kills": [[1, 0.01], …] has the ranks begin as often, each time in the same folder: that rank is killed so many seconds after its
second save began, the first being committed, and the others a moment later.
"""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import stallscope

SAMPLES, EPOCHS = 48, 2
# Others get so long to commit what a killed rank had its part in, or to find that it is gone.
MOMENT_S = 0.1


class Shard:
    """A state that differs from rank to rank, as a sharded model's does."""

    def __init__(self, rank):
        self.values = torch.full((1000 + rank,), float(rank))

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"].clone()


def tell(rank, **what):
    # One write, so that the lines of two ranks do not mix.
    os.write(1, (json.dumps({"rank": rank, **what}) + "\n").encode())


def joined(loader, trained):
    from torch.distributed.algorithms.join import Join

    with Join([trained]):
        yield from loader


def train(rank, meeting, folder, case):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if case["ranks"] > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=case["ranks"])
    # Ranks draw differently; DistributedDataParallel makes their models alike.
    torch.manual_seed(7 + rank)
    random.seed(7 + rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    trained = DistributedDataParallel(model) if case["ranks"] > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.arange(SAMPLES * 4.0).reshape(SAMPLES, 4) / 200)
    sampler = DistributedSampler(data, case["ranks"], rank)
    loader = DataLoader(data, batch_size=4, sampler=list(range(24 + 8 * rank)) if case.get("uneven") else sampler)
    shard = Shard(rank)
    if case.get("alone") and rank == 1:
        trained = model = torch.nn.Linear(4, 2) if case["alone"] == "model" else model
    parts = {"shard": shard} if case.get("sharded") else {"model": trained, "optimizer": optimizer}
    if case.get("alone") == "object" and rank == 1:
        parts["shard"] = shard
    options = {"every": 5, **case.get("options", {})}
    checkpointer = stallscope.Checkpointer(folder, loader=loader, sharded=bool(case.get("sharded")), **parts, **options)
    start = checkpointer.restore()
    tell(rank, start=start and start.step, shard=shard.values.sum().item())
    step = start.step if start else 0
    for epoch in range(start.epoch if start else 0, case.get("epochs", EPOCHS)):
        sampler.set_epoch(epoch)
        for (batch,) in joined(loader, trained) if case.get("uneven") else loader:
            optimizer.zero_grad()
            trained(batch).square().mean().backward()
            optimizer.step()
            shard.values += 1
            time.sleep(case.get("pause_s", 0.0))
            step += 1
            if step == case.get("unsaved"):
                checkpointer.state = {"unsaved": lambda: None}
            if step == case.get("term_rank_1_at") and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            while "stop" in case and not checkpointer._saver.ready():
                # A save that is due while memory for it is not there yet is passed over, and these few steps are soon over.
                time.sleep(0.001)
            checkpointer.step()
            done = step - (start.step if start else 0)
            if "kill" in case and done == 5:
                checkpointer.save(wait=True)
            elif "kill" in case and done == 10:
                checkpointer.save()
                time.sleep(case["kill"][1])
                if rank == case["kill"][0]:
                    os.kill(os.getpid(), signal.SIGKILL)
            if step == case.get("stop"):
                checkpointer.close()
                return
        if case.get("uneven"):
            checkpointer.save(wait=True)
    # What is in the checkpoint.
    kept = [shard.values] if case.get("sharded") else list(model.state_dict().values())
    outcome = repr(([value.tolist() for value in kept], torch.rand(3).tolist(), random.random()))
    tell(rank, end=hashlib.sha256(outcome.encode()).hexdigest(), steps=step)
    checkpointer.close()


def main():
    case = json.loads(sys.argv[2])
    for kill in case.get("kills", []):
        live({**case, "kill": kill})
    live(case)


def live(case):
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        ranks = [
            fork.Process(target=train, args=(rank, os.path.join(folder, "meeting"), sys.argv[1], case))
            for rank in range(case["ranks"])
        ]
        for rank in ranks:
            rank.start()
        if "kill" in case:
            ranks[case["kill"][0]].join()
            time.sleep(MOMENT_S)
            for rank in ranks:
                rank.kill()
        for number, rank in enumerate(ranks):
            rank.join()
            tell(number, code=rank.exitcode)


if __name__ == "__main__":
    main()
