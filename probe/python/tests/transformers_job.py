"""Trains with Transformers' Trainer, untouched and with a cache; prints what came of it, a JSON line a case.

usage: transformers_job.py FOLDER CASE...; a case is {"cached": bool, …}. Each runs in a process of its own, forked from
one that has imported Transformers, which takes longer than to train.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import transformers

# What a Trainer would import in each of our processes.
import transformers.integrations.integration_utils  # noqa: F401
from torch.utils.data import Dataset

import stallscope.transformers

SAMPLES = 23
TRAINED = []


class Parts(Dataset):
    """A file a sample."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        return Path(self.folder, f"{index}.bin").read_bytes()

    def decode(self, data):
        return {"x": torch.tensor([float(data[0])]), "labels": torch.zeros(1), "unused": 1}

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


class Memory(Parts):
    """Has its samples in memory, so that a cache is of no use to it."""

    fetch = property()

    def __getitem__(self, index):
        return self.decode(bytes([index]))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x, labels=None):
        TRAINED.append([int(value) for value in x.flatten()])
        return {"loss": (self.dropout(self.layer(x)) - labels).square().mean()}


def collated(samples):
    """Known by the order in which it puts a batch."""
    return transformers.default_data_collator(samples[::-1])


def trained(folder, number, case):
    arguments = transformers.TrainingArguments(
        os.path.join(folder, case.get("out", str(number))), num_train_epochs=2, per_device_train_batch_size=3,
        use_cpu=True, dataloader_num_workers=2, dataloader_drop_last=case.get("drop_last", False),
        dataloader_persistent_workers=case.get("persistent", False), dataloader_pin_memory=False,
        save_strategy="steps" if "out" in case else "no", save_steps=3, max_steps=case.get("steps", -1), report_to=[],
        logging_strategy="no", disable_tqdm=True, seed=11, ddp_backend="gloo" if "RANK" in os.environ else None,
    )  # fmt: skip
    transformers.set_seed(11)
    dataset = (Memory if case.get("in_memory") else Parts)(os.path.join(folder, "source"))
    trainer = transformers.Trainer(Model(), arguments, train_dataset=dataset, data_collator=collated)
    if case["cached"]:
        assert stallscope.transformers.use_loader(trainer, cache="1GiB") is trainer
        # Of several calls the last one holds.
        stallscope.transformers.use_loader(trainer, cache="1MiB", fetchers=case.get("fetchers", 0))
    with warnings.catch_warnings(record=True) as outcome:
        warnings.simplefilter("always")
        trainer.train(resume_from_checkpoint=case.get("resume"))
    loader = trainer.callback_handler.train_dataloader
    weights = [value.tolist() for value in trainer.model.state_dict().values()]
    figures = loader.cache_figures() if hasattr(loader, "cache_figures") else {}
    warned = [str(one.message) for one in outcome if "stallscope" in str(one.message)]
    return {"trained": TRAINED, "weights": weights, "next": torch.rand(1).item(), "figures": figures, "warned": warned}


def forked(folder, number, case, **environment):
    """The end of a pipe from the process in which the case is run."""
    source, sink = os.pipe()
    if not os.fork():
        os.environ.update(environment)
        result = trained(folder, number, case)
        os.write(sink, json.dumps(result).encode())
        # What was forked with us has its own end.
        os._exit(0)
    os.close(sink)
    return os.fdopen(source)


def main():
    torch.set_num_threads(1)
    folder = sys.argv[1]
    os.mkdir(os.path.join(folder, "source"))
    for index in range(SAMPLES):
        Path(folder, "source", f"{index}.bin").write_bytes(bytes([index]) * (1000 + index))
    for number, case in enumerate(map(json.loads, sys.argv[2:])):
        ranks = case.get("ranks", 1)
        # A pool of its own: that of the case before stays for a while.
        environments = [{"STALLSCOPE_RUNTIME_DIR": os.path.join(folder, f"run-{number}")}]
        if ranks > 1:
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": case["port"], "WORLD_SIZE": str(ranks)}
            environments = [{**environments[0], "RANK": str(r), "LOCAL_RANK": str(r), **address} for r in range(ranks)]
        ends = [forked(folder, number, case, **environment) for environment in environments]
        print(json.dumps([json.load(end) for end in ends]), flush=True)
        for _ in ends:
            os.wait()


if __name__ == "__main__":
    main()
