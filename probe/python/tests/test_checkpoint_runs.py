"""A folder's checkpoints belong to the run that saved them, and go only as that run has newer ones."""

import json
import os
import subprocess

from collector import PACKAGE, environment
from test_checkpointer import assert_goes_on, checkpoints, train, whole

FIXED = {"every": 1000, "keep": 1}


def named(*steps):
    return [f"step-{step:09}" for step in steps]


def runs(folder):
    """The run of each checkpoint, by its manifest."""
    found = {}
    for name in checkpoints(folder):
        with open(os.path.join(folder, name, "manifest.json")) as file:
            found[name] = json.load(file)["content"].get("run")
    return found


def test_a_run_that_begins_anew_keeps_its_hands_off_the_one_before(python, tmp_path):
    assert train(python, tmp_path, options=FIXED, events={"9": ["save"], "20": ["save", "exit"]}).code == 0
    assert checkpoints(tmp_path) == named(19)
    outcome = train(python, tmp_path, options=FIXED, restore=None, events={"5": ["save"], "8": ["save", "exit"]})
    assert outcome.code == 0 and outcome.start is None
    assert checkpoints(tmp_path) == named(7, 19), "its own earlier one goes, the other run's stays"
    assert outcome.err.count("has 1 checkpoint of another run, the newest step-000000019, which this one does not remove") == 1
    second, first = runs(tmp_path).values()
    assert first and second and first != second
    # A restore goes on with the run that it restores, and collects for that one.
    outcome = train(python, tmp_path, options=FIXED, events={"12": ["save", "exit"]})
    assert outcome.start["step"] == 7 and "another run" not in outcome.err
    assert checkpoints(tmp_path) == named(10, 19)
    assert runs(tmp_path) == {"step-000000010": second, "step-000000019": first}


def test_a_killed_job_goes_on_with_its_run(python, tmp_path):
    for kill in (8, 8):
        outcome = train(python, tmp_path, kill, options={"every": 1000, "keep": 2}, events={"5": ["save"], "10": ["save"]})
        assert outcome.code < 0 and "another run" not in outcome.err
    outcome = train(python, tmp_path, options={"every": 1000, "keep": 2}, events={"14": ["save"]})
    assert_goes_on(whole(python), outcome)
    assert checkpoints(tmp_path) == named(8, 11) and len(set(runs(tmp_path).values())) == 1


def test_checkpoints_of_before_runs_had_names_load_and_are_collected(python, tmp_path):
    script = """
import sys, torch
from stallscope import Checkpointer
checkpointer = Checkpointer(sys.argv[1], model=torch.nn.Linear(2, 2), every=1000, keep=1)
if sys.argv[2] == "old":
    checkpointer._saver.continue_run(None)
else:
    assert checkpointer.restore().step == 1
checkpointer.step()
checkpointer.save(wait=True)
checkpointer.close()
"""
    for how, there in (("old", named(1)), ("new", named(2))):
        command = [python, "-c", script, tmp_path, how]
        env = environment(None, PYTHONPATH=str(PACKAGE))
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert runs(tmp_path) == {there[0]: None} and "another run" not in done.stderr
