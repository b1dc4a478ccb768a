"""Samples that a thread of the training process makes are torch's, and so are training's random numbers."""

import json
from pathlib import Path

from collector import PACKAGE, run_plain

JOB = Path(__file__).with_name("thread_job.py")


def test_a_thread_that_makes_samples_draws_what_it_draws_with_torch_and_so_does_training(python, tmp_path):
    done = run_plain([python, JOB], PYTHONPATH=str(PACKAGE), STALLSCOPE_RUNTIME_DIR=str(tmp_path))
    assert done.code == 0, done.err
    outcome = json.loads(done.out)
    assert min(outcome["masks"]) >= 24, "training draws meanwhile"
    assert outcome["like torch"] and all(outcome["like torch"].values()), outcome["like torch"]
