"""Samples that are fetched ahead of their use: the same as without, each read once a use, whichever process is killed."""

import json
import os
import signal
import subprocess
import time
from functools import lru_cache
from pathlib import Path

import pytest
from ahead_sets import SAMPLES
from collector import PACKAGE, environment, run_plain, run_warm
from turning import old

from stallscope.data.prefetch.process_table import ProcessTable

JOB = Path(__file__).with_name("ahead_job.py")
SAME = [
    ("shuffle", "parts", False), ("shuffle", "files", True), ("generator", "parts", False),
    ("generator-even", "parts", True), ("drop-last", "parts", True), ("sequential", "files", False),
    ("distributed", "parts", True), ("replacement", "parts", False), ("weighted", "parts", True),
    ("single", "parts", False), ("shuffle", "swallowing", True),
]  # fmt: skip
EPOCHS, KILLS = 2, 4


def case(name, *arguments):
    return json.dumps([name, *arguments])


# Of the old torch these.
OLD = [case("same", *one) for one in SAME[:3]] + [case("killed", KILLS)]
CASES = [
    *[case("same", *one) for one in SAME],
    *[case("sampled", sampling) for sampling in ("importance", "reuse")],
    *[case("failing", cached) for cached in (True, False)],
    case("slow", 4), case("resumed"), case("killed", KILLS), case("pool_killed"), case("turned"), case("subset"),
    case("locked"),
    *[case(name, persistent) for name in ("forks", "server_killed", "reaping") for persistent in (False, True)],
]  # fmt: skip


def env(folder):
    return {"PYTHONPATH": str(PACKAGE), "STALLSCOPE_RUNTIME_DIR": os.path.join(folder, "run")}


@lru_cache(None)
def outcomes(python, folder):
    cases = OLD if old(python) else CASES
    done = run_warm([python, JOB, folder, *cases], **env(folder))
    assert done.code == 0, done.err
    return dict(zip(cases, map(json.loads, done.out.splitlines())))


@pytest.fixture(scope="module")
def outcome(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ahead")
    return lambda name, *arguments: outcomes(python, str(folder))[case(name, *arguments)]


@pytest.mark.parametrize("one", [*SAME[:3], *(pytest.param(one, marks=pytest.mark.own_python) for one in SAME[3:])])
def test_order_samples_and_generators_are_as_without(outcome, one):
    same = outcome("same", *one)
    assert same["order"], "the draws are torch's"
    assert same["samples"], "and so is what is made of them"
    assert same["after"], "and what generators give later"
    assert same["left"] == 0, "fetchers go with their loader"
    figures = same["figures"]
    draws = figures["hits"] + figures["misses"]
    assert figures["prefetched"] <= figures["hits"] and figures["late"] <= figures["hits"] and draws > SAMPLES // 2
    assert figures["kept_bytes"] <= figures["capacity_bytes"] == 384 << 10, "both spaces are in the budget"


@pytest.mark.parametrize("order,kind,persistent", [one for one in SAME[:3] if one[1] == "parts" and one[0] == "shuffle"])
def test_no_sample_is_read_more_often_than_it_is_used(outcome, order, kind, persistent):
    assert outcome("same", order, kind, persistent)["most"] <= EPOCHS


@pytest.mark.own_python
def test_with_a_slow_source_most_uses_find_their_sample_read(outcome):
    slow = outcome("slow", 4)
    figures = slow["figures"]
    assert slow["whole"] and figures["hits"] + figures["misses"] == 1500 == slow["reads"]
    assert figures["prefetched"] > 1000 and figures["source_bytes"] > 1500 * 800


@pytest.mark.own_python
def test_a_position_is_taken_up_in_mid_epoch(outcome):
    assert outcome("resumed")["same"]


@pytest.mark.own_python
@pytest.mark.parametrize("sampling", ["importance", "reuse"])
def test_other_samplings_draw_and_keep_the_same(outcome, sampling):
    sampled = outcome("sampled", sampling)
    assert sampled["same"]
    figures = sampled["figures"]
    assert figures["hits"] + figures["misses"] == EPOCHS * SAMPLES


@pytest.mark.own_python
def test_errors_are_the_data_sets_own(outcome):
    assert outcome("failing", True) == outcome("failing", False)


def test_fetchers_that_are_killed_cost_no_sample(outcome):
    killed = outcome("killed", KILLS)
    assert killed["killed"] == KILLS and killed["same"] and killed["left"] == 0
    assert killed["stopped"] == "", "a few are made anew"


@pytest.mark.own_python
def test_a_pool_that_is_killed_costs_no_sample(outcome):
    killed = outcome("pool_killed")
    assert killed["killed"] == 1 and killed["same"]


@pytest.mark.own_python
def test_their_number_may_change_at_any_batch(outcome):
    turned = outcome("turned")
    assert turned["same"] and 0 < turned["fetchers"] <= 5
    assert turned["most"] == 1 and turned["reads"] == 800, "each sample is read once"


@pytest.mark.own_python
@pytest.mark.parametrize("persistent", [False, True])
def test_training_forks_nobody_when_they_are_turned_and_those_turned_down_go(outcome, persistent):
    forks = outcome("forks", persistent)
    assert forks["same"] and forks["forks"] == 0, "the training process forked in the midst of training"
    assert forks["by_server"] and forks["left"] == 0


@pytest.mark.own_python
@pytest.mark.parametrize("persistent", [False, True])
def test_a_fork_server_that_is_killed_costs_no_sample(outcome, persistent):
    killed = outcome("server_killed", persistent)
    assert killed["same"] and killed["left"] == 0
    if persistent:
        assert "died" in killed["stopped"] and killed["there"] == [1, 0, 0], "training forks no more"
    else:
        assert killed["stopped"] == "" and killed["there"][1:] == [1, 1], "the next epoch has another"


@pytest.mark.own_python
@pytest.mark.parametrize("persistent", [False, True])
def test_a_job_that_reaps_all_children_keeps_no_fork_server_and_kills_nobody_else(outcome, persistent):
    reaping = outcome("reaping", persistent)
    assert reaping["reaped"], "it was the job that reaped them"
    assert reaping["same"] and reaping["left"] == 0 and reaping["remembered"] == 0
    assert reaping["gone"] == ([] if persistent else [True]), "the end waits no longer than the fork server is there"
    assert ("died" in reaping["stopped"]) == persistent
    assert reaping["spared"], "another process has the number of a fork server that is gone"


@pytest.mark.own_python
def test_a_lock_of_the_data_set_is_never_left_held(outcome):
    locked = outcome("locked")
    assert locked["seen"] == [2] * 12 and locked["figures"]["prefetched"] > 0


@pytest.mark.own_python
def test_a_subset_is_fetched_from_what_is_behind_it(outcome):
    assert outcome("subset")["same"]


@pytest.mark.own_python
def test_nobody_outlives_a_trainer_that_is_killed(python, tmp_path):
    command = [python, JOB, tmp_path, case("trainer")]
    job = subprocess.Popen(
        [str(part) for part in command], env=environment(None, **env(str(tmp_path))), stdout=subprocess.PIPE, text=True
    )
    try:
        there = json.loads(job.stdout.readline())
        assert there["trainer"] == job.pid and len(there["fetchers"]) == 3 and there["servers"]
    finally:
        job.kill()
        job.wait()
    until_gone(there["fetchers"] + there["servers"])


def hung(python, folder):
    """A trainer whose fetchers hang in a read, and who they are."""
    command = [str(part) for part in (python, JOB, folder, case("hung"))]
    job = subprocess.Popen(
        command, env=environment(None, **env(str(folder))), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    there = json.loads(job.stdout.readline())
    assert there["got"] == [0, 1] and len(there["fetchers"]) == 3 and len(there["servers"]) == 1
    return job, there


@pytest.mark.own_python
def test_a_fetcher_that_hangs_ends_with_the_trainer_though_the_fork_server_was_killed(python, tmp_path):
    job, there = hung(python, tmp_path)
    try:
        os.kill(there["servers"][0], signal.SIGKILL)
        until_gone(there["servers"])
        assert all(map(is_there, there["fetchers"])), "nobody ends a read while training goes on"
        job.communicate("end\n")
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0
    until_gone(there["fetchers"])


@pytest.mark.own_python
def test_a_fetcher_that_hangs_does_not_outlive_a_trainer_that_is_killed(python, tmp_path):
    job, there = hung(python, tmp_path)
    job.kill()
    job.communicate()
    until_gone(there["fetchers"] + there["servers"])


def test_another_process_that_has_a_fetchers_number_is_left_alone():
    process_table = ProcessTable()
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            for started in (0, 1):
                process_table.words[0], process_table.words[1] = other.pid, started
                assert process_table.is_empty()
                process_table.kill()
            assert is_there(other.pid)
            process_table.words[1] = int(Path(f"/proc/{other.pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
            assert not process_table.is_empty()
            process_table.kill()
            assert other.wait() == -signal.SIGKILL and process_table.is_empty()
        finally:
            other.kill()


def until_gone(pids):
    deadline = time.monotonic() + 120
    while any(map(is_there, pids)):
        assert time.monotonic() < deadline, "a fetcher or its server is left"
        time.sleep(0.05)


def is_there(pid):
    try:
        os.kill(pid, 0)
        # Who waits for a parent that collects it has ended.
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.own_python
def test_how_many_may_be_asked_for(python):
    ask = """
import stallscope
for count in (33, -1, 1.5, True):
    try:
        stallscope.DataLoader([1], fetchers=count)
    except ValueError as error:
        print(error)
"""
    done = run_plain([python, "-c", ask], PYTHONPATH=str(PACKAGE))
    assert len(done.out.splitlines()) == 4 and "whole number from 0 to 32" in done.out
