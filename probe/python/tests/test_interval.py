"""The interval of checkpoints as a knob: set, given back to the script's own rule, and with ranks the first one's."""

import json
import subprocess
import time
from pathlib import Path

import pytest
from collector import PACKAGE, Collector, environment
from conftest import has

JOB = Path(__file__).with_name("interval_job.py")
NAME = "ckpt.interval"


def turned(python, folder, ranks, asked):
    """What was in force after rank 0 had answered each of `asked`; the knob's facts and the interval at the end, by rank."""
    collector = Collector()
    env = environment(collector.path, PYTHONPATH=f"{PACKAGE / 'stallscope' / '_inject'}:{PACKAGE}")
    job = subprocess.Popen([python, JOB, folder, str(ranks)], env=env, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240

    def shown():
        known = [process for process in collector.processes if process.greeting]
        return {process.greeting["rank"]: process for process in known if (NAME, None) in process.knobs()}

    def serve_until(reached):
        while not reached():
            assert time.monotonic() < deadline and job.poll() is None, "the job does not get there"
            collector.serve_once()

    try:
        serve_until(lambda: len(shown()) == ranks)
        first, in_force = shown()[0], []
        for value in asked:
            first.ask(NAME, value)
            serve_until(lambda: first.standing(NAME)[1] == "applied")
            in_force.append(first.standing(NAME)[0])
        facts = {rank: process.knobs()[NAME, None] for rank, process in shown().items()}
        (folder / "STOP").touch()
        assert collector.serve(job) == 0
        ends = [json.loads(line) for line in job.stdout.read().splitlines()]
        return in_force, facts, {end["rank"]: end["interval"] for end in ends}
    finally:
        if job.poll() is None:
            job.kill()
        collector.close()


def test_an_interval_that_was_set_is_given_back(python, tmp_path):
    in_force, facts, ends = turned(python, tmp_path, 1, [600, 0])
    assert in_force == [600, 3]
    assert facts[0]["min"] == 0 and facts[0]["unit"] == "seconds"
    assert ends == {0: pytest.approx(3)}


def test_the_first_rank_decides_and_the_others_say_so(python, tmp_path):
    if not has(python, "torch.distributed.distributed_c10d"):
        pytest.skip(f"SKIPPED: the torch of {python} has no distributed training")
    in_force, facts, ends = turned(python, tmp_path, 2, [600])
    assert in_force == [600]
    assert facts[0]["available"] and not facts[1]["available"]
    assert "Rank 0 decides" in facts[1]["reason"]
    assert ends[0] == pytest.approx(600)
