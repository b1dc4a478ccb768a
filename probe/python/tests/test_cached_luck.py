"""A loader with a cache when processes are killed and budgets change: nothing hangs, and every sample is right."""

import json
import os
from functools import lru_cache
from pathlib import Path

import pytest
from cached_sets import FILES
from collector import PACKAGE, run_warm

pytestmark = pytest.mark.own_python

JOB = Path(__file__).with_name("cached_job.py")
CASES = [
    json.dumps(case)
    for case in (
        ["pool_killed", 0],
        ["pool_killed", 2],
        ["worker_killed", "fork"],
        ["resized"],
    )
]


@lru_cache(None)
def outcomes(python, folder):
    env = {"PYTHONPATH": str(PACKAGE), "STALLSCOPE_RUNTIME_DIR": os.path.join(folder, "run")}
    done = run_warm([python, JOB, folder, *CASES], **env)
    assert done.code == 0, done.err
    return dict(zip(CASES, map(json.loads, done.out.splitlines())))


@pytest.fixture(scope="module")
def outcome(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("luck")
    return lambda *case: outcomes(python, str(folder))[json.dumps(list(case))]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pool_that_is_killed_in_mid_epoch_is_misses(outcome, workers):
    killed = outcome("pool_killed", workers)
    assert killed["killed"] == 1
    assert killed["same"]
    figures = killed["figures"]
    assert figures["hits"] + figures["misses"] == 3 * FILES
    # Workers may have read all of it before it is killed.
    assert workers or figures["misses"] > FILES


def test_a_worker_that_is_killed_while_it_reads_leaves_no_sample_locked(outcome):
    killed = outcome("worker_killed", "fork")
    assert killed["error"], "torch's own error for a worker that died"
    assert killed["same"], "and the next epoch is whole"


def test_a_budget_that_changes_before_every_sample_changes_no_sample(outcome):
    resized = outcome("resized")
    assert resized["same"] and resized["changed"] == 3 * FILES
    assert resized["figures"]["capacity_bytes"] == 1 << 20
