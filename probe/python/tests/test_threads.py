"""Samples that a thread of the training process makes leave training's random numbers alone."""

import json
from pathlib import Path

from collector import PACKAGE, run_plain

JOB = Path(__file__).with_name("thread_job.py")


def test_no_mask_comes_twice_and_a_loop_in_a_thread_is_as_it_was(python, tmp_path):
    done = run_plain([python, JOB], PYTHONPATH=str(PACKAGE), STALLSCOPE_RUNTIME_DIR=str(tmp_path))
    assert done.code == 0, done.err
    outcome = json.loads(done.out)
    for case, seen in outcome["beside"].items():
        assert seen["masks"] >= 24 and seen["distinct"] == seen["masks"], (case, seen)
    assert outcome["like torch"] and outcome["the same again"]
