"""Hugging Face's Trainer saves when it is told to, and resumes as it always did."""

import json
import os
import subprocess

from collector import PACKAGE, environment
from conftest import needs

SCRIPT = """
import json, sys, time, warnings
import torch, transformers
import stallscope.transformers
warnings.simplefilter("ignore")

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.002)
        return {"x": torch.full((4,), index / 256)}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}

arguments = transformers.TrainingArguments(sys.argv[1], max_steps=60, save_strategy="no", report_to=[], disable_tqdm=True,
                                           use_cpu=True, logging_strategy="no")
# A budget so large that cost does not matter here.
callback = stallscope.transformers.CheckpointCallback(overhead=0.9, mtbf="1s")
trainer = transformers.Trainer(Model(), arguments, train_dataset=Data(), callbacks=[callback])
trainer.train()
print(json.dumps({"costs": callback.timing.costs()}))
"""


def test_the_trainer_saves_when_it_is_worth_it(tmp_path):
    env = environment(None, PYTHONPATH=str(PACKAGE))
    command = [needs("transformers"), "-c", SCRIPT, tmp_path]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    spent_s, trained_s, *_ = json.loads(done.stdout.splitlines()[-1])["costs"]
    saved = [name for name in os.listdir(tmp_path) if name.startswith("checkpoint-")]
    assert saved and spent_s > 0 and trained_s > spent_s
