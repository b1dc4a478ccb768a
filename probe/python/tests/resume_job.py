"""A small training job that can be killed at any moment: prints a line a step, with a hash of everything that matters.

usage: resume_job.py FOLDER '{"every": 3, ...}'
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

import stallscope
from stallscope import _random
from stallscope.checkpoint.tree import Writer, to_bytes

EPOCHS = 4


class Noisy(Dataset):
    def __init__(self, samples=40):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.randn(8) * 0.1 + index / 40 + random.random() * 0.1


def network(width):
    """BatchNorm has buffers that forward changes, dropout draws, and the first layer is frozen."""
    parts = [torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout(0.2)]
    model = torch.nn.Sequential(*parts, torch.nn.Linear(width, width), torch.nn.Linear(width, 1))
    model[0].requires_grad_(False)
    return model


def cycled(loader):
    while True:
        yield from loader


def fingerprint(*objects):
    """Of parameters, buffers, optimiser, scheduler and every generator."""
    digest = hashlib.sha256()
    writer = Writer()
    states = [writer.encode(one.state_dict(), str(at)) for at, one in enumerate(objects)]
    digest.update(to_bytes([*states, writer.encode(_random.capture(), "random")]))
    for name, tensor in writer.tensors.items():
        digest.update(name.encode() + bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()))
    return digest.hexdigest()


class Job:
    def __init__(self, folder, case):
        torch.manual_seed(case.get("seed", 3))
        random.seed(case.get("seed", 3))
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(3)
        self.case = case
        self.folder = folder
        self.model = network(case.get("width", 16))
        trained = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, 0.9)
        kind = stallscope.DataLoader if case.get("ours") else DataLoader
        self.loader = kind(Noisy(), batch_size=4, shuffle=True, num_workers=case.get("workers", 0))
        # A second one that is shorter, iterated over and over beside it.
        self.second = kind(Noisy(24), batch_size=4, shuffle=True) if case.get("second") else None
        self.state = {"seen": 0, "pair": (1, "a")}
        self.checkpointer = stallscope.Checkpointer(
            folder,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            loader=self.loader if self.second is None else [self.loader, self.second],
            state=self.state,
            **{"every": 3, **case.get("options", {})},
        )

    def run(self):
        how = self.case.get("restore", {})
        start = None if how is None else self.checkpointer.restore(**how)
        outcome = None if start is None else {"step": start.step, "epoch": start.epoch, "passed": start.passed}
        print(json.dumps({"start": outcome, "seen": self.state["seen"]}), flush=True)
        second = cycled(self.second) if self.second is not None else None
        for epoch in range(start.epoch if start else 0, EPOCHS):
            for ids, batch in self.loader:
                if second is not None:
                    more_ids, more = next(second)
                    ids, batch = torch.cat([ids, more_ids]), torch.cat([batch, more])
                self.train(batch)
                line = [epoch, ids.flatten().tolist(), fingerprint(self.model, self.optimizer, self.scheduler)]
                self.state["seen"] += 1
                print(json.dumps({"step": self.state["seen"], "did": line}), flush=True)
                self.happen()
                if self.case.get("settles"):
                    self.settle()
                self.checkpointer.step()
            self.scheduler.step()
        self.checkpointer.close()
        print(json.dumps({"end": fingerprint(self.model, self.optimizer, self.scheduler)}), flush=True)

    def settle(self):
        """Until the save that is due next can begin: one is passed over where the one before is being written, or its memory is."""
        self.checkpointer._wait()
        while not self.checkpointer._saver.ready():
            time.sleep(0.001)

    def train(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        # A step of some length, so that saves and steps overlap in every way.
        time.sleep(self.case.get("pause_s", 0.0))

    def happen(self):
        """What the case asks for at this step."""
        for event in self.case.get("events", {}).get(str(self.state["seen"]), []):
            if event == "save":
                self.checkpointer.save(wait=True)
            elif event == "save, and go on":
                self.checkpointer.save()
                # What training does at once must not be in the checkpoint.
                with torch.no_grad():
                    for tensor in [*self.model.parameters(), *self.model.buffers()]:
                        tensor.zero_() if tensor.dtype == torch.int64 else tensor.fill_(float("nan"))
            elif event == "term":
                os.kill(os.getpid(), signal.SIGTERM)
            elif event == "usr1":
                os.kill(os.getpid(), signal.SIGUSR1)
            elif event == "turn the folder into a file":
                newest = sorted(name for name in os.listdir(self.folder) if name.startswith("step-"))[-1]
                while not os.path.exists(os.path.join(self.folder, newest, "verified")):
                    time.sleep(0.005)
                os.rename(self.folder, f"{self.folder}.gone")
                open(self.folder, "w").close()
            elif event == "exit":
                sys.exit(0)
            elif event == "exit, hard":
                os._exit(7)
            elif event == "fork":
                child = os.fork()
                if child == 0:
                    self.checkpointer.step()
                    self.checkpointer.close()
                    del self.checkpointer
                    os._exit(5)
                print(json.dumps({"child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}), flush=True)


def train(folder, case):
    if case.get("handler"):
        signal.signal(signal.SIGTERM, lambda *_: (print(json.dumps({"handler": "called"}), flush=True), sys.exit(9)))
    Job(folder, case).run()


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("always")
    train(sys.argv[1], json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
