"""Jobs whose state is DTensors, one after the other in the same folder; each rank of each prints a line.

usage: dtensor_job.py FOLDER '[{"ranks": 2, "mesh": [2], "kind": "fsdp", "train": 3, "save": true}, …]'

Kinds: "fsdp" (fully_shard), "columns", "mixed", "twice" and "same" (the weights placed so), "half" (on meshes of two ranks each), "plain" (no DTensors; of one rank).
"app" hands model and optimiser over as one object, "frozen" does not train the first weight, "odd" is a rank with another model, "last" one that refuses to restore,
"width" makes one large weight and no other state, "tied" two layers of one weight with fewer rows than ranks, "average" keeps the weights' average in the dict `state`.

A job restores the newest checkpoint where there is one ("by": "dcp": what torch.distributed.checkpoint saved), trains so many steps, and
saves, with torch too. `restored` and `trained` are digests of all parameters and of all of the optimiser's state, whole: the same whatever the
ranks. Where "torn", rank 1 is killed as it begins to write what would be the next checkpoint.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

import stallscope

WIDTHS = 10, 7, 5


class Last:
    """Comes last, and may refuse what it saved itself."""

    def __init__(self, refuses):
        self.refuses = refuses

    def state_dict(self):
        return {"places": 3}

    def load_state_dict(self, state):
        if self.refuses:
            raise ValueError("not this one")


class App:
    """A job as DCP's tutorials have it."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def made(case):
    """A model whose rows no number of ranks divides."""
    torch.manual_seed(3)
    (a, b, c) = WIDTHS
    model = torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.BatchNorm1d(b), torch.nn.Linear(b, c))
    if "width" in case:
        model = torch.nn.Sequential(torch.nn.Linear(case["width"], case["width"], bias=False))
    if case.get("tied"):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        model[1].weight = model[0].weight
    model[0].weight.requires_grad_(not case.get("frozen"))
    kind = case["kind"]
    if kind != "plain":
        mesh = init_device_mesh("cpu", tuple(case["mesh"]), mesh_dim_names=("replicas", "shards")[-len(case["mesh"]) :])
        if kind == "fsdp" and case.get("tied"):
            fully_shard(model, mesh=mesh)
        elif kind == "fsdp":
            for layer in (*(one for one in model if isinstance(one, torch.nn.Linear)), model):
                fully_shard(layer, mesh=mesh)
        elif kind == "half":
            model[0].weight = torch.nn.Parameter(distribute_tensor(model[0].weight.detach(), mesh["shards"], [Shard(0)]))
        else:
            # Columns and rows in turn, on whatever mesh.
            places = {"columns": [Shard(1)], "mixed": [Shard(0), Shard(1)], "twice": [Shard(0), Shard(0)], "same": [Replicate()]}[kind]

            def place(name, layer, mesh):
                if isinstance(layer, torch.nn.Linear):
                    layer.weight = torch.nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, places))

            distribute_module(model, mesh, place)
    trained = [one for one in model.parameters() if one.requires_grad]
    return model, torch.optim.SGD(trained, lr=0.01) if "width" in case else torch.optim.AdamW(trained, lr=0.01)


def train(model, optimizer, steps, average=None):
    """Of gradients that are made, so that ranks, however many, train alike."""
    for step in range(steps):
        for number, parameter in enumerate(model.parameters()):
            if not parameter.requires_grad:
                continue
            torch.manual_seed(100 * step + number)
            gradient = torch.randn(parameter.shape)
            if isinstance(parameter, DTensor):
                gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
        for name, parameter in model.named_parameters() if average is not None else ():
            if name not in average:
                average[name] = parameter.detach().clone()
            average[name].lerp_(parameter.detach(), 0.1)


def digest(model, optimizer, average=None):
    tensors = [*model.state_dict().values(), *(average or {}).values()]
    for parameter in model.parameters():
        tensors += [optimizer.state[parameter][key] for key in sorted(optimizer.state.get(parameter, {}))]
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in tensors]
    outcome = hashlib.sha256()
    for one in whole:
        outcome.update(repr((one.shape, one.dtype)).encode())
        outcome.update(one.detach().contiguous().numpy().tobytes())
    return outcome.hexdigest()


def work(rank, meeting, folder, case):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if case["ranks"] > 1 or case["kind"] != "plain":
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=case["ranks"])
    facts = {"rank": rank}
    try:
        run(rank, folder, case, facts)
    except stallscope.CheckpointError as error:
        facts["refused"] = str(error)
    os.write(1, (json.dumps(facts) + "\n").encode())


def run(rank, folder, case, facts):
    model, optimizer = made(case)
    train(model, optimizer, case.get("before", 0))
    objects = {"app": App(model, optimizer)} if case.get("app") else {"model": model, "optimizer": optimizer}
    if case.get("odd") == rank:
        objects = {"model": torch.nn.Linear(3, 3), "optimizer": optimizer}
    if "last" in case:
        objects["last"] = Last(case["last"] == rank)
    facts["before"] = digest(model, optimizer)
    state = {"average": {}} if case.get("average") else None
    checkpointer = stallscope.Checkpointer(folder, every=10**9, sharded=case.get("sharded", False), state=state, **objects)
    theirs = os.path.join(folder, "dcp")
    if case.get("by") == "dcp":
        # Gives an optimiser its state, as DCP wants it to have.
        state = App(model, optimizer).state_dict()
        dcp.load(state, checkpoint_id=theirs)
        App(model, optimizer).load_state_dict(state)
        facts["start"] = "dcp"
    else:
        before = read_bytes()
        try:
            start = checkpointer.restore()
        except stallscope.CheckpointError:
            facts["after"] = digest(model, optimizer)
            raise
        facts.update(start=start and start.name, read=read_bytes() - before)
    average = checkpointer.state.get("average")
    facts["restored"] = digest(model, optimizer, average)
    train(model, optimizer, case.get("train", 0), average)
    facts["trained"] = digest(model, optimizer, average)
    if case.get("save"):
        checkpointer.step()
        checkpointer.save(wait=True)
        if case["kind"] != "plain":
            dcp.save(App(model, optimizer).state_dict(), checkpoint_id=theirs)
    if case.get("torn"):
        checkpointer.step()
        if rank == 1:
            checkpointer._saver.persist = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        checkpointer.save()
        # As long as it would take to commit its part alone.
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.close()


def read_bytes():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def main():
    for case in json.loads(sys.argv[2]):
        with tempfile.TemporaryDirectory() as folder:
            fork = multiprocessing.get_context("fork")
            given = os.path.join(folder, "meeting"), sys.argv[1], case
            ranks = [fork.Process(target=work, args=(rank, *given)) for rank in range(case["ranks"])]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()


if __name__ == "__main__":
    main()
