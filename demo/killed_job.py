"""What demo/killed.py kills: trains a small network that draws at random wherever training does, and tells a digest of all.

usage: killed_job.py --steps 600 [--checkpoints FOLDER --overhead 0.05 --mtbf 10s]

Prints a line of JSON when training begins and one at its end.
"""

import argparse
import hashlib
import json
import os
import random

import numpy
import torch

import stallscope

SAMPLES, BATCH, CLASSES = 4096, 128, 10


class Noisy(torch.utils.data.Dataset):
    """Vectors of ten classes, with random augmentation from every generator there is."""

    def __init__(self):
        self.centres = torch.randn(CLASSES, 512, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        sample = self.centres[index % CLASSES] * random.uniform(0.8, 1.2) + torch.randn(512)
        return index, sample + numpy.random.normal(0, 0.1), index % CLASSES


def network():
    """Some 20 MB with what Adam keeps; dropout draws, and forward changes the buffers of the batch norm."""
    parts = [torch.nn.Linear(512, 1024), torch.nn.BatchNorm1d(1024), torch.nn.ReLU(), torch.nn.Dropout(0.3)]
    return torch.nn.Sequential(*parts, torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, CLASSES))


def digest(value):
    """SHA-256 of numbers, texts and tensors, in whatever they lie."""
    sha = hashlib.sha256()

    def take(one):
        if isinstance(one, (torch.Tensor, numpy.ndarray)):
            array = one.detach().numpy() if isinstance(one, torch.Tensor) else one
            sha.update(f"{array.dtype} {array.shape}".encode() + numpy.ascontiguousarray(array).tobytes())
        elif isinstance(one, dict):
            for key, inner in one.items():
                take(key)
                take(inner)
        elif isinstance(one, (list, tuple)):
            for inner in one:
                take(inner)
        else:
            sha.update(f"{one!r};".encode())

    take(value)
    return sha.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--checkpoints", metavar="FOLDER")
    parser.add_argument("--overhead", type=float, default=0.05)
    parser.add_argument("--mtbf", default="10s")
    options = parser.parse_args()
    # The other cores are for the loader's workers, and for writing.
    torch.set_num_threads(1)
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(7)
    loader = stallscope.DataLoader(Noisy(), batch_size=BATCH, shuffle=True, num_workers=1)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.95)
    state = {"steps": 0, "order": ""}
    checkpointer, start = None, None
    if options.checkpoints:
        checkpointer = stallscope.Checkpointer(
            options.checkpoints,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            loader=loader,
            state=state,
            overhead=options.overhead,
            mtbf=options.mtbf,
        )
        start = checkpointer.restore()
    print(json.dumps({"pid": os.getpid(), "from": state["steps"]}), flush=True)
    epoch = start.epoch if start else 0
    while state["steps"] < options.steps:
        for indices, batch, classes in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), classes).backward()
            optimizer.step()
            state["steps"] += 1
            state["order"] = hashlib.sha256(f"{state['order']} {indices.tolist()}".encode()).hexdigest()
            if checkpointer:
                checkpointer.step()
            if state["steps"] == options.steps:
                break
        else:
            scheduler.step()
            epoch += 1
    digests = {
        "parameters": digest(model.state_dict()),
        "optimizer": digest([optimizer.state_dict(), scheduler.state_dict()]),
        "generators": digest([torch.get_rng_state(), random.getstate(), numpy.random.get_state()]),
        "order": digest(state),
    }
    if checkpointer:
        checkpointer.close()
    print(json.dumps({"digests": digests, "costs": checkpointer.costs if checkpointer else None}), flush=True)


if __name__ == "__main__":
    main()
