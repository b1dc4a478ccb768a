"""Ranks draw disjoint parts of one sequence, and learn of each other's losses."""

import json
import os
from functools import lru_cache
from pathlib import Path

import pytest
from collector import PACKAGE, run_warm

pytestmark = pytest.mark.own_python

JOB = Path(__file__).with_name("sampling_ranks_job.py")


def case(sampling, way="joined", **options):
    return json.dumps([sampling, options, way])


TWO = [
    case("reuse", batch_size=8),
    case("reuse", "given", batch_size=8),
    *[case(sampling, batch_size=8) for sampling in ("importance", "iis", "shade")],
    case("importance", batch_size=8, drop_last=True),
    case("importance", batch_size=8, samples=231),
    case("importance", "sampler", batch_size=8),
    case("importance", "others", batch_size=8),
]
# As two ranks: twice their batch.
ONE = [case(sampling, batch_size=16) for sampling in ("reuse", "importance", "iis", "shade")]


@pytest.fixture(scope="module")
def outcome(python, tmp_path_factory):
    return outcomes(python, str(tmp_path_factory.mktemp("sampling")))


@lru_cache(None)
def outcomes(python, folder):
    env = {"PYTHONPATH": str(PACKAGE), "STALLSCOPE_RUNTIME_DIR": os.path.join(folder, "run"), "GLOO_SOCKET_IFNAME": "lo"}
    found = {}
    for ranks, cases in ((2, TWO), (1, ONE)):
        done = run_warm([python, JOB, str(ranks), *cases], **env)
        assert done.code == 0, done.err
        found.update(zip(cases, map(json.loads, done.out.splitlines())))
    return found


def batches(rank):
    return [batch for _, epoch in rank["epochs"] for batch in epoch]


def together(ranks):
    """The global batches of all ranks."""
    return [
        [sum((one[at] for one in parts), []) for at in (0, 1)] for parts in zip(*(batches(rank) for rank in ranks))
    ]


@pytest.mark.parametrize("sampling", ("reuse", "importance", "iis", "shade"))
def test_two_ranks_draw_what_one_draws_with_twice_the_batch(outcome, sampling):
    two, (one,) = outcome[case(sampling, batch_size=8)], outcome[case(sampling, batch_size=16)]
    assert two[0]["seed"] == two[1]["seed"] == one["seed"], "rank 0's, however the others are seeded"
    ours, theirs = together(two), batches(one)
    # Ranks of SHADE's rank the losses of their own batches.
    count = len(theirs) // 3 if sampling == "shade" else len(theirs)
    assert ours[:count] == theirs[:count]
    assert batches(two[0]) != batches(two[1])


@pytest.mark.parametrize("sampling", ("importance", "iis", "shade"))
def test_ranks_stay_in_step_while_they_learn(outcome, sampling):
    two = outcome[case(sampling, batch_size=8)]
    assert {len(rank["epochs"]) for rank in two} == {3}
    for first, second in zip(two[0]["epochs"], two[1]["epochs"]):
        assert len(first[1]) == len(second[1]) == first[0] == second[0]
    if sampling != "iis":
        assert {weight for _, weights in together(two)[-10:] for weight in weights} != {1.0}, "they have learned"


def test_a_pass_of_two_ranks_has_every_sample_once(outcome):
    two = outcome[case("iis", batch_size=8)]
    ids = sum((ids for ids, _ in together(two)[:15]), [])
    assert sorted(ids) == list(range(230))


def test_ranks_go_on_where_they_were_left(outcome):
    for sampling in ("importance", "iis", "shade"):
        assert [rank["again"] for rank in outcome[case(sampling, batch_size=8)]] == [True, True]


def test_all_ranks_have_the_same_number_of_batches(outcome):
    for one, count, last in (
        (case("importance", batch_size=8), 15, 3),
        (case("importance", batch_size=8, drop_last=True), 14, 8),
        (case("importance", batch_size=8, samples=231), 15, 4),
    ):
        for rank in outcome[one]:
            for length, epoch in rank["epochs"]:
                assert length == len(epoch) == count
                assert len(epoch[-1][0]) == last


def test_ranks_without_a_process_group_agree_by_a_fixed_seed(outcome):
    two = outcome[case("reuse", "given", batch_size=8)]
    assert two[0]["seed"] == two[1]["seed"] == 0
    assert batches(two[0]) != batches(two[1])
    (both,) = [sorted(sum((ids for ids, _ in together(two)), []))]
    assert len(both) == 3000


def test_two_ranks_never_give_the_same_sample_in_anothers_place(outcome):
    two = outcome[case("importance", "others", batch_size=8)]
    given_in_all = 0
    for epochs in zip(*(rank["epochs"] for rank in two)):
        used, given = set(), set()
        for parts in zip(*epochs):
            assert all(is_true for _, _, _, is_true in parts)
            drawn = {index for was, _, _, _ in parts for index in was}
            others = [one for was, ids, _, _ in parts for one in zip(was, ids) if one[0] != one[1]]
            for was, index in others:
                assert was % 5 == index % 5, "of the same class"
                assert index not in drawn and index not in used and index not in given
                given.add(index)
            used |= drawn - {was for was, _ in others}
        given_in_all += len(given)
    assert given_in_all > 20
