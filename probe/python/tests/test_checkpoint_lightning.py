"""A Lightning job that is cut off goes on as if it had not been, with one line more in its script."""

import json
import os
import subprocess

import pytest
from collector import PACKAGE, environment
from conftest import has

SCRIPT = """
import hashlib, json, logging, sys, warnings
import torch, lightning
import stallscope, stallscope.lightning
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.randn(4) + index

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.seen = []

    def training_step(self, batch, number):
        self.seen.append([self.trainer.global_step, hashlib.sha256(repr(batch.tolist()).encode()).hexdigest()[:8]])
        return self.layers(batch).square().mean()

    def on_train_batch_end(self, *ignored):
        if self.trainer.global_step == int(sys.argv[2]):
            raise KeyboardInterrupt

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

lightning.seed_everything(5, verbose=False)
module = Module()
callback = stallscope.lightning.CheckpointCallback(sys.argv[1], every=4)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback], logger=False,
                            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
try:
    trainer.fit(module, stallscope.DataLoader(Data(), batch_size=4, shuffle=True))
except (KeyboardInterrupt, SystemExit):
    pass
end = hashlib.sha256(repr([value.tolist() for value in module.state_dict().values()]).encode()).hexdigest()
print(json.dumps({"start": callback.start and callback.start.step, "seen": module.seen, "end": end, "steps": trainer.global_step}))
"""


@pytest.fixture(scope="module")
def lightning_python(python):
    for candidate in (os.environ.get("STALLSCOPE_LIGHTNING_PYTHON"), python):
        if candidate and has(candidate, "lightning"):
            return candidate
    pytest.skip(f"SKIPPED: {python} has no Lightning; STALLSCOPE_LIGHTNING_PYTHON may name one that has")


def fit(python, folder, stop=0):
    env = environment(None, PYTHONPATH=str(PACKAGE))
    command = [python, "-c", SCRIPT, folder, str(stop)]
    done = subprocess.run(command, env=env, cwd=folder.parent, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    return json.loads(lines[-1])


def test_lightning_goes_on_where_it_was(lightning_python, tmp_path):
    whole = fit(lightning_python, tmp_path / "whole")
    cut = fit(lightning_python, tmp_path / "cut", stop=6)
    assert whole["steps"] == 20 and cut["steps"] == 6
    resumed = fit(lightning_python, tmp_path / "cut")
    assert resumed["start"] == 4 and resumed["seen"] == whole["seen"][4:]
    assert resumed["end"] == whole["end"]
