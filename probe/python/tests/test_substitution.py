"""Another sample of the same class in place of one that would have to be read: what it may do, and what it says."""

import json
import os
from functools import lru_cache
from pathlib import Path

import pytest
from collector import PACKAGE, run, run_warm

pytestmark = pytest.mark.own_python

JOB = Path(__file__).with_name("substitution_job.py")


def case(name, *arguments):
    return json.dumps([name, *arguments])


RUNS = [
    *[("run", sampling, 0.1, workers) for sampling in ("importance", "iis", "shade") for workers in (0, 2)],
    ("run", "importance", 1.0, 2),
    ("run", "importance", 0.2, 2, 4, {"fetchers": 2}),
    ("run", "importance", 0.2, 2, 4, {"persistent_workers": True, "multiprocessing_context": "spawn"}),
    ("run", "importance", 0.2, 2, 4, {"batch_size": None}),
    ("run", "importance", 0.2, 0, 4, {"drop_last": True, "batch_size": 48}),
]
KILLED = [("importance", 0), ("importance", 2), ("iis", 2)]
OTHERS = [
    *[case("off", sampling, workers) for sampling, workers in (("importance", 0), ("iis", 2), ("shade", 0))],
    *[case("killed", *one) for one in KILLED],
    *[case("resumed", *workers) for workers in ((0, 2), (2, 0))],
    *[case(name) for name in ("subset", "refused")],
]


@pytest.fixture(scope="module")
def outcome(python, tmp_path_factory):
    return outcomes(python, str(tmp_path_factory.mktemp("substitution")))


@lru_cache(None)
def outcomes(python, folder):
    files = os.path.join(folder, "files")
    os.mkdir(files)
    cases = [*[case(*one) for one in RUNS], *OTHERS, case("files", files), case("trace", folder)]
    done = run_warm([python, JOB, *cases], PYTHONPATH=str(PACKAGE), STALLSCOPE_RUNTIME_DIR=os.path.join(folder, "run"))
    assert done.code == 0, done.err
    found = dict(zip(cases, map(json.loads, done.out.splitlines())))
    return {**found, "files": found[cases[-2]], "trace": found[cases[-1]]}


@pytest.mark.parametrize("one", RUNS, ids=lambda one: "-".join(map(str, one[1:])))
def test_what_is_given_is_within_the_rules_and_reported_as_what_it_is(outcome, one):
    found = outcome[case(*one)]
    assert found["true"], "ids are those of the samples in the batch"
    assert found["wrong"] == [], "of another class, used before in the epoch, or in the same batch"
    assert found["over"] <= 1e-9, "more than the share, at some moment of an epoch"
    assert found["given"] > 20


@pytest.mark.parametrize("one", RUNS, ids=lambda one: "-".join(map(str, one[1:])))
def test_uses_are_hits_or_substitutions_or_misses(outcome, one):
    """One that is gone from the pool when its turn comes is read, and is a miss."""
    found = outcome[case(*one)]
    figures = found["figures"]
    assert 0 < figures["substitutions"] <= found["given"]
    assert figures["hits"] + figures["substitutions"] + figures["misses"] == found["draws"]


@pytest.mark.parametrize("sampling, workers", [("importance", 0), ("iis", 2), ("shade", 0)])
def test_without_a_word_all_is_given_as_it_was_drawn(outcome, sampling, workers):
    found = outcome[case("off", sampling, workers)]
    assert found["same"] and found["own"]
    assert found["planned"], "and what is drawn, and with which weight, stays as it was"
    assert found["given"] > 0 and found["reads"][1] < found["reads"][0]


@pytest.mark.parametrize("one", KILLED, ids=lambda one: "-".join(map(str, one)))
def test_when_the_pool_is_killed_samples_are_read_and_are_what_they_are_called(outcome, one):
    found = outcome[case("killed", *one)]
    assert found["killed"] == 1 and found["true"] and found["wrong"] == [] and found["over"] <= 1e-9
    assert found["behind"] == 0, "of what a dead pool kept nothing is given, and all that a new one has was used"
    if one[0] != "iis":
        assert found["lengths"] == [1000] * 6


@pytest.mark.parametrize("workers", ((0, 2), (2, 0)))
def test_an_epoch_that_is_taken_up_knows_what_it_has_used(outcome, workers):
    found = outcome[case("resumed", *workers)]
    assert found["planned"], "the same samples are drawn, with the same weights"
    assert found["true"] and found["wrong"] == [] and found["over"] <= 1e-9
    assert found["rest"] > 10 and found["state"] < 1000 / 8 + 200


def test_an_epoch_of_which_nothing_is_known_gives_nothing(outcome):
    first, second = outcome[case("resumed", 0, 2)]["blind"]
    assert first == 0 and second > 0


def test_samples_of_a_subset_are_found_in_the_pool(outcome):
    found = outcome[case("subset")]
    assert found["true"] and found["wrong"] == [] and found["given"] > 20


def test_files_are_given_in_place_of_others(outcome):
    found = outcome["files"]
    assert found["true"] and found["wrong"] == [] and found["over"] <= 1e-9
    assert 0 < found["figures"]["substitutions"] <= found["given"]


def test_a_trace_is_of_what_was_drawn(outcome):
    found = outcome["trace"]
    assert found["same"] and found["given"] > 0


def test_what_cannot_be_had_is_refused_in_a_sentence(outcome):
    found = outcome[case("refused")]
    assert "gives torch's draws, sample by sample" in found["plain"]
    assert "'importance', 'iis', 'shade'" in found["plain"]
    assert "uses each sample equally often" in found["reuse"]
    assert found["off"] == found["labels"] == "None"
    assert 'say cache="8GiB"' in found["no cache"]
    assert "say labels=" in found["no classes"] and "say labels=" in found["many"]
    assert "one label for each of 1000 samples" in found["short"]
    for name in ("below", "above", "words", "bool", "nan"):
        assert "has to be a share of the draws, from 0 to 1" in found[name]


@pytest.mark.parametrize("workers", (0, 2))
def test_the_collector_counts_substitutions_apart_from_hits(python, tmp_path, workers):
    inject = PACKAGE / "stallscope" / "_inject"
    env = {"PYTHONPATH": f"{inject}{os.pathsep}{PACKAGE}", "STALLSCOPE_RUNTIME_DIR": str(tmp_path / "run")}
    done = run([python, JOB, case("run", "importance", 0.2, workers, 3)], **env)
    assert done.code == 0, done.err
    figures = json.loads(done.out)["figures"]
    uses = [record for process in done.collector.processes for record in process.of("CacheUses")]
    assert sum(record.hits for record in uses) == figures["hits"]
    assert sum(record.substitutions for record in uses) == figures["substitutions"] > 0
    assert sum(record.misses for record in uses) == figures["misses"]
