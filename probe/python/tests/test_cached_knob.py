"""The cache's bytes are turned while a job runs, and the collector hears what came of its uses."""

import os
from pathlib import Path

import pytest
from cached_sets import FILES
from collector import PACKAGE
from turning import Turned, once

pytestmark = pytest.mark.own_python

JOB = Path(__file__).with_name("cached_knob_job.py")


@pytest.fixture(scope="module", params=[0, 2], ids=["in-process", "workers"])
def done(request, python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("knob")
    # The job imports the package itself, as users do who have installed it.
    inject = PACKAGE / "stallscope" / "_inject"
    env = {"STALLSCOPE_RUNTIME_DIR": str(folder / "run"), "PYTHONPATH": f"{inject}{os.pathsep}{PACKAGE}", "UNTIL": str(folder)}
    turn = once(("cache.bytes", 4 << 20), ("cache.bytes", 1 << 60), ("cache.bytes", 2 << 20), until=folder)
    return Turned([python, JOB, folder, request.param], turn, **env)


def test_the_budget_is_a_knob_of_its_loader(done):
    assert done.code == 0, done.err
    knob = [outcome for outcome in done.trainer.facts_of("knob") if outcome["name"] == "cache.bytes"][0]
    assert knob["loader"] == 0 and ("cache.bytes", 0) not in done.trainer.knobs(), "it goes with its loader"
    assert (knob["unit"], knob["initial"], knob["min"]) == ("bytes", 8 << 20, 1 << 20)
    assert 8 << 20 < knob["max"] < 1 << 45, "half of the memory"
    assert done.was("cache.bytes", 4 << 20, "applied") and done.was("cache.bytes", 2 << 20, "applied")
    assert any("out of its bounds" in reason for reason in done.reasons("cache.bytes", "refused"))


def test_turning_changes_no_sample(done):
    (line,) = done.lines
    assert line["same"]
    assert line["figures"]["capacity_bytes"] == 2 << 20


def test_uses_are_reported_by_the_process_that_made_the_batch(done):
    (line,) = done.lines
    makers = [process for process in done.collector.processes if process.of("CacheUses")]
    workers = [process for process in makers if process is not done.trainer]
    assert bool(workers) == (done.trainer not in makers)
    uses = [record for process in makers for record in process.of("CacheUses")]
    hits, misses = sum(record.hits for record in uses), sum(record.misses for record in uses)
    assert (hits, misses) == (line["figures"]["hits"], line["figures"]["misses"])
    assert hits + misses == 8 * FILES
    assert (sum(record.pool_bytes for record in uses), sum(record.source_bytes for record in uses)) == (
        line["figures"]["pool_bytes"],
        line["figures"]["source_bytes"],
    )


def test_the_state_is_reported_by_the_trainer_once_a_second_at_most(done):
    states = done.trainer.of("CacheState")
    assert states and all(state.kept_bytes <= state.capacity_bytes and state.kept_samples <= FILES for state in states)
    assert {state.loader for state in states} == {0}
    assert all(later.time_ns - earlier.time_ns >= 10**9 for earlier, later in zip(states, states[1:]))
