"""A job that closes all descriptors but its own, as daemons do: what it opens then is no loader's of ours to close."""

import subprocess
import sys

import pytest
from collector import PACKAGE

pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

JOB = """
import gc, os, sys
import stallscope

class Numbers:
    def __len__(self):
        return 8
    def fetch(self, index):
        return bytes([index])
    def decode(self, data):
        return data[0]

def loader():
    return stallscope.DataLoader(Numbers(), batch_size=4, cache="1MiB", cache_trace="uses.csv")

# One that is gone while nothing is there, and one while files of the job's are.
for files in (0, 40):
    kept = loader()
    batches = [batch.tolist() for _ in range(2) for batch in kept]
    os.closerange(3, 600)
    own = [open(f"{number}", "w+") for number in range(files)]
    del kept
    gc.collect()
    for number, file in enumerate(own):
        file.write(str(number))
        file.close()
    assert [open(f"{number}").read() for number in range(files)] == [str(number) for number in range(files)]
    assert [batch.tolist() for _ in range(2) for batch in loader()] == batches
print(batches)
"""


def test_descriptors_that_the_job_has_closed_are_its_own(tmp_path):
    environment = {"PYTHONPATH": str(PACKAGE), "STALLSCOPE_RUNTIME_DIR": str(tmp_path / "run")}
    done = subprocess.run(
        [sys.executable, "-c", JOB], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, f"{[[0, 1, 2, 3], [4, 5, 6, 7]] * 2}\n"), done.stderr


SAVES = """
import os
import stallscope, torch

model = torch.nn.Linear(2000, 2000)
with stallscope.Checkpointer("ckpts", model=model, signals=()) as checkpointer:
    for _ in range(10):
        checkpointer.save()
        for turn in range(30):
            os.closerange(3, 600)
            own = [open(f"{number}", "w+") for number in range(100)]
            for number, file in enumerate(own):
                file.write(str(number))
                file.flush()
            assert [open(f"{number}").read() for number in range(100)] == [str(number) for number in range(100)]
            for file in own:
                file.close()
        model.weight.data += 1
    checkpointer.save(wait=True)
    expected = model.weight.clone()
    assert checkpointer.restore("latest") and torch.equal(model.weight, expected)
print(len([name for name in os.listdir("ckpts") if name.startswith("step-")]), os.path.exists("ckpts/quarantine"))
"""


def test_descriptors_that_the_job_closes_while_it_saves_are_not_those_of_the_save(tmp_path):
    environment = {"PYTHONPATH": str(PACKAGE), "STALLSCOPE_RUNTIME_DIR": str(tmp_path / "run")}
    done = subprocess.run(
        [sys.executable, "-c", SAVES], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    # No save has failed, which a warning would say.
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 False\n", "")
