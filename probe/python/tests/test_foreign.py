"""Beside other tools that hook torch: everything is counted once, and torch's warnings name the lines of the job."""

import json
from pathlib import Path

import pytest
from collector import run, run_plain

JOB = Path(__file__).with_name("foreign_job.py")
BATCHES = 20
SAMPLES = 40


@pytest.mark.parametrize("how", ["finder", "front", "reload"])
def test_everything_is_counted_once(python, how):
    done = run([python, JOB, how])
    assert done.code == 0, done.err
    assert done.out == run_plain([python, JOB, how]).out
    trainer = done.collector.trainer()
    assert trainer.facts_of("unavailable") == []
    for loader in (0, 1):
        waits = trainer.of("Wait", loader)
        assert [wait.batch for wait in waits] == list(range(BATCHES)), loader
        assert [start.epoch for start in trainer.of("IterStart", loader)] == [0], loader
        assert [end.batches for end in trainer.of("IterEnd", loader)] == [BATCHES], loader
    made = [process for process in done.collector.processes if process.of("Batch")]
    assert sum(len(process.of("Batch")) for process in made) == 2 * BATCHES
    assert sum(sample.count for process in made for sample in process.of("Sample")) == 2 * SAMPLES
    assert len(trainer.of("Checkpoint")) == 2


def test_warnings_name_the_lines_of_the_job(python):
    done, plain = run([python, JOB, "warnings"]), run_plain([python, JOB, "warnings"])
    assert done.code == 0, done.err
    outcome = json.loads(done.out)
    assert len(outcome) >= 2, outcome
    assert outcome == json.loads(plain.out)
