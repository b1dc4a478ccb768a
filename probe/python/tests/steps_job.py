"""Training loops in the ways that scripts write them without a loader.

usage: steps_job.py SCENARIO...; each runs in a forked child, which has no steps yet, and prints one JSON line: its name, its
pid, what it computed.
"""

import json
import os
import sys
import tempfile
import threading

import torch
from torch.utils.data import DataLoader, TensorDataset

TURNS = 10

torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
other = torch.nn.Linear(4, 4)


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def train(optimizer, batch=None, module=model, backwards=1):
    optimizer.zero_grad()
    for _ in range(backwards):
        module(torch.ones(4) if batch is None else batch).square().mean().backward()
    optimizer.step()


def loader(samples):
    return DataLoader(TensorDataset(torch.ones(samples, 4)), batch_size=1)


def plain():
    optimizer = optimizer_of(model)
    for _ in range(TURNS):
        train(optimizer)


def accumulate():
    optimizer = optimizer_of(model)
    for _ in range(TURNS):
        train(optimizer, backwards=4)


def anew():
    """Makes its optimiser anew for each step, and keeps the last ones."""
    kept = []
    for _ in range(TURNS):
        kept.append(torch.optim.SGD(model.parameters(), lr=0.1))
        train(kept[-1])


class Around(torch.optim.Optimizer):
    """Has another one make the step, as those that look ahead do."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self):
        self.inner.step()


def around():
    optimizer = Around(optimizer_of(model))
    for _ in range(TURNS):
        train(optimizer)


def two():
    """A GAN's."""
    first, second = optimizer_of(model), optimizer_of(other)
    for _ in range(TURNS):
        train(first)
        train(second, module=other)


def critic():
    """A GAN whose critic steps five times a turn, after the generator."""
    critic, generator = optimizer_of(model), optimizer_of(other)
    for _ in range(TURNS):
        train(generator, module=other)
        for _ in range(5):
            train(critic)


def with_loader():
    optimizer = optimizer_of(model)
    for (batch,) in loader(TURNS):
        # Several steps with one batch.
        for _ in range(3):
            train(optimizer, batch)


def evaluating():
    optimizer = optimizer_of(model)
    for turn in range(TURNS):
        train(optimizer)
        if turn == TURNS // 2:
            with torch.no_grad():
                for (batch,) in loader(3):
                    model(batch)


def by_script():
    import stallscope

    optimizer = optimizer_of(model)
    for _ in range(TURNS):
        for _ in range(3):
            train(optimizer)
        stallscope.step()


def in_a_thread():
    """Of a loader that a thread iterates nobody can tell what training waits for."""
    thread = threading.Thread(target=lambda: list(loader(3)))
    thread.start()
    thread.join()
    plain()


def beside():
    """The main thread only waits."""
    thread = threading.Thread(target=plain)
    thread.start()
    thread.join()


def forked():
    """A child that trains is a trainer of its own."""
    plain()
    child = os.fork()
    if child == 0:
        plain()
        # Without Python's end.
        os._exit(0)
    os.waitpid(child, 0)


def saving():
    """Each save in a child that is forked for it."""
    optimizer = optimizer_of(model)
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(4):
            train(optimizer)
            child = os.fork()
            if child == 0:
                torch.save(model.state_dict(), f"{folder}/{turn}.pt")
                os._exit(0)
            os.waitpid(child, 0)


class Own(torch.optim.Optimizer):
    """An optimiser without a break in its graph."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-0.1)


def compiled(fullgraph=False, kind=optimizer_of):
    optimizer = kind(model)
    step = torch.compile(optimizer.step, backend="eager", fullgraph=fullgraph)
    for _ in range(TURNS):
        optimizer.zero_grad()
        model(torch.ones(4)).square().mean().backward()
        step()


def compiled_whole():
    compiled(fullgraph=True, kind=lambda module: Own(module.parameters()))


for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        globals()[name]()
        computed = [parameter.tolist() for module in (model, other) for parameter in module.parameters()]
        print(json.dumps({"name": name, "pid": os.getpid(), "computed": computed}), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"{name} failed")
