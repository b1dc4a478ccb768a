"""Checkpoint calls, collectives and ranks."""

import pytest
from collector import run
from conftest import has, needs

SAVES = """
import io, os, sys, threading, torch
folder = sys.argv[1]
state = {"weight": torch.zeros(100_000)}
torch.save(state, folder + "/a.pt")
with open(folder + "/b.pt", "wb") as file:
    file.write(b"x" * 1000)
    torch.save(state, file)
torch.save(state, io.BytesIO())
thread = threading.Thread(target=torch.save, args=(state, folder + "/c.pt"))
thread.start()
thread.join()
try:
    torch.save(state, folder + "/nowhere/d.pt")
except (OSError, RuntimeError):
    print("refused")
print(torch.save.__name__, torch.save.__module__, torch.load(folder + "/a.pt")["weight"].sum().item())
"""

DISTRIBUTED_SAVES = """
import sys, warnings, torch
import torch.distributed.checkpoint as dcp
warnings.simplefilter("ignore")
folder = sys.argv[1]
state = {"weight": torch.zeros(100_000)}
dcp.save(state, checkpoint_id=folder + "/one")
future = dcp.async_save(state, checkpoint_id=folder + "/two")
future.result()
"""

RANKS = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

def rank(number, path):
    dist.init_process_group("gloo", init_method="file://" + path, rank=number, world_size=2)
    for _ in DataLoader(TensorDataset(torch.arange(4)), batch_size=2):
        dist.all_reduce(torch.ones(1))
    dist.all_gather_object([None, None], number)
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(rank, (sys.argv[1],), nprocs=2)
"""


def written(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    return path


def only_process(done):
    assert done.code == 0, done.err
    (process,) = [process for process in done.collector.processes if process.events]
    return process


def test_torch_save(python, tmp_path):
    done = run([python, written(tmp_path, SAVES), tmp_path])
    assert done.out == "refused\nsave torch.serialization 0.0\n"
    saves = only_process(done).of("Checkpoint")
    assert [save.saver for save in saves] == ["torch.save"] * 5 and {save.stage for save in saves} == {"persist"}
    assert [save.caller for save in saves] == ["main_thread"] * 3 + ["thread", "main_thread"]
    size = (tmp_path / "a.pt").stat().st_size
    assert saves[0].bytes == size and saves[3].bytes == (tmp_path / "c.pt").stat().st_size
    assert saves[1].bytes == (tmp_path / "b.pt").stat().st_size - 1000
    assert saves[2].bytes > 400_000 and saves[4].bytes == 0
    assert all(save.began_ns < save.time_ns for save in saves)


def test_safetensors_counts_nested_calls_once(tmp_path):
    python = needs("safetensors.torch")
    text = """
import sys, torch
from safetensors.torch import save_file, save_model
save_file({"weight": torch.zeros(1000)}, sys.argv[1] + "/a.safetensors")
save_model(torch.nn.Linear(10, 10), sys.argv[1] + "/b.safetensors")
"""
    done = run([python, written(tmp_path, text), tmp_path])
    saves = only_process(done).of("Checkpoint")
    assert [save.saver for save in saves] == ["safetensors"] * 2
    assert [save.bytes for save in saves] == [(tmp_path / f"{name}.safetensors").stat().st_size for name in "ab"]


# Each saves twice, and gathers its state for 0.2 s before it writes.
FRAMEWORKS = {
    "transformers": """
import sys, time, torch, transformers
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.layer(x) - labels).square().mean()}
class Slow(transformers.Trainer):
    def store_flos(self):
        time.sleep(0.2)
arguments = transformers.TrainingArguments(
    sys.argv[1] + "/run", max_steps=4, save_steps=2, per_device_train_batch_size=1, use_cpu=True, report_to=[],
    logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False)
Slow(Model(), arguments, train_dataset=[{"x": [1.0], "labels": [0.0]}] * 8).train()
""",
    "lightning": """
import sys, time, torch, lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
    def on_save_checkpoint(self, checkpoint):
        time.sleep(0.2)
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 1))))
for name in "ab":
    trainer.save_checkpoint(f"{sys.argv[1]}/{name}.ckpt")
""",
    "accelerate": """
import sys, time, torch, accelerate
accelerator = accelerate.Accelerator(cpu=True)
model = torch.nn.Linear(1, 1)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
accelerator.register_save_state_pre_hook(lambda models, weights, folder: time.sleep(0.2))
for name in "ab":
    accelerator.save_state(f"{sys.argv[1]}/{name}")
""",
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_framework_does_around_the_writing_is_part_of_the_save(framework, tmp_path):
    python = needs(framework)
    done = run([python, written(tmp_path, FRAMEWORKS[framework]), tmp_path])
    saves = only_process(done).of("Checkpoint")
    assert [save.caller for save in saves] == ["main_thread"] * 2, "one for all the files of a checkpoint"
    assert all(save.time_ns - save.began_ns >= 200_000_000 and save.bytes > 0 for save in saves)


def test_distributed_checkpoints(tmp_path):
    python = needs("torch.distributed.checkpoint")
    done = run([python, written(tmp_path, DISTRIBUTED_SAVES), tmp_path])
    saves = only_process(done).of("Checkpoint")
    assert [save.saver for save in saves].count("dcp.save") == 2, "DCP's own torch.save calls are a part of it"
    sync = [save for save in saves if (save.saver, save.caller) == ("dcp.save", "main_thread")]
    background = [save for save in saves if (save.saver, save.caller) == ("dcp.save", "thread")]
    (snapshot,) = [save for save in saves if (save.saver, save.stage) == ("dcp.async_save", "snapshot")]
    drains = [save for save in saves if (save.saver, save.stage) == ("dcp.async_save", "persist")]
    assert len(sync) == len(background) == 1 and sync[0].bytes > 400_000 and background[0].bytes > 400_000
    assert snapshot.caller == "main_thread" and all(drain.time_ns >= snapshot.time_ns for drain in drains)
    assert {save.saver for save in saves} == {"dcp.save", "dcp.async_save"}


def test_ranks_and_collectives(python, tmp_path):
    if not has(python, "torch.distributed.distributed_c10d"):
        pytest.skip(f"SKIPPED: the torch of {python} has no distributed training")
    done = run([python, written(tmp_path, RANKS), tmp_path / "rendezvous"])
    assert done.code == 0, done.err
    trainers = [process for process in done.collector.processes if process.kind == "trainer"]
    outcome = [(fact["rank"], fact["world_size"]) for t in trainers for fact in t.facts_of("kind")[-1:]]
    assert sorted(outcome) == [(0, 2), (1, 2)]
    for trainer in trainers:
        assert len(trainer.of("Wait")) == 2 and len(trainer.of("IterStart")) == 1
        collectives = trainer.of("Collective")
        assert 5 <= len(collectives) and all(c.began_ns < c.time_ns for c in collectives)


def test_the_launchers_ranks(tmp_path):
    import json
    import sys

    from collector import PACKAGE

    text = f"""
import json, sys
sys.path.insert(0, {str(PACKAGE)!r})
from stallscope._hooks import ranks
print(json.dumps(ranks.from_environment()))
"""
    cases = [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 8, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2"}, (5, 6, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2, 0)),
        ({"RANK": "nonsense", "WORLD_SIZE": "2"}, (0, 1, 0)),
        ({"RANK": "2", "WORLD_SIZE": "2"}, (0, 1, 0)),
        ({}, (0, 1, 0)),
    ]
    for variables, expected in cases:
        done = run([sys.executable, written(tmp_path, text)], **variables)
        fact = json.loads(done.out)
        assert (fact["rank"], fact["world_size"], fact["local_rank"]) == expected, variables
