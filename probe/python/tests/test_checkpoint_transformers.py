"""Hugging Face's Trainer saves on request, and what it resumes ends as the run that nobody stopped."""

import json
import os
import signal
import subprocess

import pytest
from collector import PACKAGE, environment
from conftest import needs

STEPS = 90
SCRIPT = """
import json, os, signal, sys, time, warnings
import torch, transformers
import stallscope.transformers
warnings.simplefilter("ignore")
torch.set_num_threads(1)
folder, manner, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
TRAINED = []

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return {"x": torch.full((4,), index / 256)}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, x):
        TRAINED.append([round(value * 256) for value in x[:, 0].tolist()])
        # As long as a small network takes.
        time.sleep(0.02)
        return {"loss": self.dropout(self.layer(x)).square().mean()}

class Killed(transformers.TrainerCallback):
    # Some steps behind a save, as nothing that kills a job waits for one.
    at = None

    def on_save(self, args, state, control, **ignored):
        self.at = self.at or state.global_step + 4

    def on_step_end(self, args, state, control, **ignored):
        if state.global_step == self.at:
            print(json.dumps({"trained": TRAINED}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

class Account(transformers.TrainerCallback):
    # What saves had cost of what was trained, whenever one was begun.
    begun = []

    def on_step_end(self, args, state, control, **ignored):
        if control.should_save:
            self.begun.append(callback.timing.costs()[:2])

arguments = transformers.TrainingArguments(folder, max_steps=steps, save_strategy="no", report_to=[], disable_tqdm=True,
                                           use_cpu=True, logging_strategy="no", seed=11, learning_rate=0.05)
transformers.set_seed(11)
# The budget that it has where no option is given, of a job that fails often.
callback = stallscope.transformers.CheckpointCallback(**({"every": 3} if manner == "every" else {"mtbf": "1min"}))
callbacks = {"whole": [], "killed": [callback, Killed()], "resumed": [callback, Account()], "every": [callback]}[manner]
trainer = transformers.Trainer(Model(), arguments, train_dataset=Data(), callbacks=callbacks)
trainer.train(resume_from_checkpoint=manner == "resumed")
weights = [value.tolist() for value in trainer.model.state_dict().values()]
outcome = {"costs": callback.timing.costs(), "begun": Account.begun}
print(json.dumps({"trained": TRAINED, "weights": weights, "next": torch.rand(1).item(), **outcome}))
"""


def run(folder, manner, steps=STEPS):
    env = environment(None, PYTHONPATH=str(PACKAGE), HF_HUB_OFFLINE="1")
    command = [needs("transformers"), "-c", SCRIPT, folder, manner, str(steps)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=400)
    outcome = [line for line in done.stdout.splitlines() if line.startswith('{"trained"')]
    assert outcome, done.stderr
    return done.returncode, json.loads(outcome[-1])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The run that nobody stopped, the one that was killed and what it had saved, and the one that went on from there."""
    folder = tmp_path_factory.mktemp("trainer")
    _, whole = run(folder, "whole")
    code, killed = run(folder, "killed")
    assert code == -signal.SIGKILL, "it saved, or it would not have been killed"
    saved = sorted(name for name in os.listdir(folder) if name.startswith("checkpoint-"))
    code, resumed = run(folder, "resumed")
    assert code == 0
    return whole, killed, saved, resumed


def test_the_trainer_saves_when_it_is_worth_it_and_no_more_often(ran):
    _, killed, saved, resumed = ran
    assert len(saved) == 1 and len(killed["trained"]) == int(saved[0].split("-")[1]) + 4
    # By its own account: 2% of the time, and one save beyond that, which is as dear as a busy machine makes it.
    assert resumed["begun"] and resumed["costs"][0] > 0
    assert all(spent_s <= 0.02 * trained_s for spent_s, trained_s in resumed["begun"])


def test_a_killed_run_goes_on_as_the_one_that_nobody_stopped(ran):
    whole, killed, saved, resumed = ran
    step = int(saved[0].split("-")[1])
    assert killed["trained"] == whole["trained"][: step + 4]
    assert resumed["trained"] == whole["trained"][step:]
    assert (resumed["weights"], resumed["next"]) == (whole["weights"], whole["next"])


def test_a_fixed_interval_is_kept_whatever_a_save_costs(tmp_path):
    code, _ = run(tmp_path, "every", steps=10)
    assert code == 0
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-6", "checkpoint-9"]


def test_an_interval_that_is_none_is_refused():
    ask = """
import stallscope.transformers

for every in ("often", 0, "-1m"):
    try:
        stallscope.transformers.CheckpointCallback(every=every)
    except ValueError as error:
        print(error)
"""
    env = environment(None, PYTHONPATH=str(PACKAGE))
    done = subprocess.run([needs("transformers"), "-c", ask], env=env, capture_output=True, text=True)
    assert [line.split(":")[0].split(" ")[0] for line in done.stdout.splitlines()] == ["every='often'", "every=0", "every='-1m'"], done.stderr


def test_a_loader_that_accelerate_has_prepared_is_refused_in_one_sentence(tmp_path):
    ask = """
import sys
import accelerate, torch
import stallscope

loader = accelerate.Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(range(8), batch_size=2))
try:
    stallscope.Checkpointer(sys.argv[1], model=torch.nn.Linear(1, 1), loader=loader)
except TypeError as error:
    print(error)
"""
    env = environment(None, PYTHONPATH=str(PACKAGE))
    done = subprocess.run([needs("accelerate"), "-c", ask, tmp_path], env=env, capture_output=True, text=True)
    assert "the position of a DataLoaderShard of Accelerate's is not known" in done.stdout, done.stderr
    assert "leave it out of prepare()" in done.stdout
