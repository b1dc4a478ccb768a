"""What a loader draws under each sampling, and that it goes on exactly where it was left."""

import json
import os
from functools import lru_cache
from pathlib import Path

import pytest
from collector import PACKAGE, run_warm

JOB = Path(__file__).with_name("sampling_job.py")
WEIGHTED = ("importance", "iis", "shade")
SAMPLINGS = (*WEIGHTED, "reuse")
# In the first batch, within an epoch, at its last batch, in the first of the next, and later: 29 batches an epoch.
STOPS = (1, 17, 29, 30, 70)
# Past the epochs in which everything is selected; fewer batches an epoch from then on.
LATE = (178, 188)


def case(name, *arguments):
    return json.dumps([name, *arguments])


DRAWS = [case("draws", sampling, workers, 7) for sampling in SAMPLINGS for workers in (0, 2)]
RESUMES = [
    *[("resume", sampling, 0, 0, STOPS) for sampling in ("importance", "shade", "iis")],
    ("resume", "importance", 2, 0, STOPS),
    ("resume", "importance", 0, 3, (17,)),
    ("resume", "importance", 2, 1, (17, 70), 4, {"persistent_workers": True}),
    ("resume", "importance", 0, 0, (17, 60), 3, {"drop_last": True}),
    ("resume", "importance", 1, 0, (17, 231), 2, {"batch_size": None}),
    ("resume", "iis", 2, 0, LATE, 7),
    ("resume", "shade", 2, 0, (40,), 3),
    ("resume", "reuse", 2, 0, (1, 120, 125, 126, 200), 2),
]
OTHERS = [
    *[case("draws", sampling, 0, 2, 6) for sampling in SAMPLINGS],
    *[case("bias", sampling) for sampling in WEIGHTED],
    *[case("steps", sampling, 0, 5) for sampling in ("importance", "iis")],
    case("steps", "importance", 2, 5),
    case("beside", "importance"),
    *[case("failing", sampling, workers) for sampling in ("importance", "plain") for workers in (0, 2)],
    *[case(name) for name in ("refused", "no_losses", "positions", "subset")],
]


@pytest.fixture(scope="module")
def outcome(python, tmp_path_factory):
    return outcomes(python, str(tmp_path_factory.mktemp("sampling")))


@lru_cache(None)
def outcomes(python, folder):
    cases = [*DRAWS, *[case(*one) for one in RESUMES], *OTHERS]
    done = run_warm([python, JOB, *cases], PYTHONPATH=str(PACKAGE), STALLSCOPE_RUNTIME_DIR=os.path.join(folder, "run"))
    assert done.code == 0, done.err
    return dict(zip(cases, map(json.loads, done.out.splitlines())))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_workers_do_not_change_what_is_drawn(outcome, sampling):
    alone, workers = (outcome[case("draws", sampling, count, 7)] for count in (0, 2))
    assert alone == workers
    assert outcome[case("draws", sampling, 0, 2, 6)] != alone[:2], "but torch.manual_seed does"
    assert [epoch["batches"] for epoch in alone[:1]] != [epoch["batches"] for epoch in alone[1:2]]


@pytest.mark.parametrize("sampling", ("importance", "shade", "reuse"))
def test_an_epoch_has_as_many_draws_as_there_are_samples(outcome, sampling):
    samples = 1000 if sampling == "reuse" else 230
    for epoch in outcome[case("draws", sampling, 0, 7)]:
        assert sum(len(ids) for ids, _ in epoch["batches"]) == samples
        assert len(epoch["batches"]) == epoch["length"] == -(-samples // 8)


def test_iis_draws_everything_while_it_looks_and_then_less_and_never_twice(outcome):
    epochs = [[one for ids, _ in epoch["batches"] for one in ids] for epoch in outcome[case("draws", "iis", 0, 7)]]
    assert [len(epoch) for epoch in epochs[:6]] == [230] * 6
    assert all(100 < len(epoch) < 220 for epoch in epochs[6:])
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs)


@pytest.mark.parametrize("sampling", ("importance", "shade"))
def test_the_harder_are_drawn_more_often_and_count_less(outcome, sampling):
    uses, weight_of = {}, {}
    for epoch in outcome[case("draws", sampling, 0, 7)][2:]:
        for ids, weights in epoch["batches"]:
            for index, weight in zip(ids, weights):
                uses[index % 13] = uses.get(index % 13, 0) + 1
                weight_of.setdefault(index % 13, []).append(weight)
    easy, hard = (sum(uses[one] for one in some) for some in ((0, 1, 2), (10, 11, 12)))
    assert hard > 1.1 * easy
    assert max(weight_of[12][-5:]) < 1 < min(weight_of[0][-5:])


def test_weights_do_not_change_once_a_sample_is_drawn(outcome):
    """A quarter of an epoch at a time is drawn, four quarters ahead: the first five by no losses at all."""
    epochs = outcome[case("draws", "importance", 0, 7)]
    weights = [weight for epoch in epochs for _, batch in epoch["batches"] for weight in batch]
    drawn_first = 5 * -(-230 // 4)
    assert set(weights[:drawn_first]) == {1.0}
    assert set(weights[drawn_first : drawn_first + 20]) != {1.0}


@pytest.mark.parametrize("sampling", WEIGHTED)
def test_weighted_means_are_those_of_all_samples(outcome, sampling):
    """Within 4.5 standard errors, which one in 150,000 right samplings exceeds; and they are precise enough to tell."""
    found = outcome[case("bias", sampling)]
    assert abs(found["off"]) < 4.5 and found["precise"] < 0.009, found
    assert abs(found["mean_weight"] - 1) < 0.02
    assert found["weights"][0] < 0.95 and found["weights"][1] > 1.05, "uneven draws, or there is nothing to show"


@pytest.mark.parametrize("resume", RESUMES, ids=lambda one: "-".join(map(str, one[1:4])))
def test_a_loader_that_is_taken_up_draws_what_it_would_have_drawn(outcome, resume):
    found = outcome[case(*resume)]
    assert max(resume[4]) < found["batches"] and found["same"] == [True] * len(resume[4])


def test_a_loop_that_is_left_early_goes_on_with_the_draws_that_follow(outcome):
    for workers in (0, 2):
        got = outcome[case("steps", "importance", workers, 5)]
        assert len(got) == 15
        assert got == outcome[case("steps", "importance", 0, 5)]
    got = outcome[case("steps", "iis", 0, 5)]
    assert len({index for batch in got[:5] for index in batch}) == 50, "and where an epoch is a pass, with the next pass"


def test_two_loops_at_once_get_an_epoch_each(outcome):
    first, second = outcome[case("beside", "importance")]
    assert len(first) == len(second) == 29 and first != second
    assert sum(map(len, first)) == sum(map(len, second)) == 230


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("sampling", ("importance", "plain"))
def test_behind_a_batch_that_fails_ids_are_right(outcome, sampling, workers):
    found = outcome[case("failing", sampling, workers)]
    assert found["failed"] >= (1 if sampling == "plain" else 0)
    assert found["batches"] + found["failed"] == 29
    assert found["position"] == 29 or (found["position"] == 28 and found["failed"])


def test_what_cannot_be_had_is_refused_in_a_sentence(outcome):
    found = outcome[case("refused")]
    messages = {
        "name": "sampling='best': there are 'plain', 'importance', 'reuse', 'iis', 'shade'",
        "option": "'reuse' has no 'use'; there are 'num_replicas', 'rank', 'uses', 'epochs', 'cache_share'",
        "option of another": "'iis' has no 'uses'",
        "uses": "uses=0 has to be a whole number from 1 to 5",
        "no cache": "uses samples again while they are in the cache",
        "sampler": "leave out sampler= and batch_sampler=",
        "shuffle": "use shuffle=True",
        "stream": "needs a data set whose samples have an index, and a length",
        "labels": "one label for each of 230 samples",
        "alone": "needs torch.distributed among 2 ranks",
        "rank": "there is no rank 2 among 2",
        "lengths": "4 ids have 3 losses",
        "mean": "give one number a sample",
        "id": "there is no sample 231 among 230",
        "below": "there is no sample -1 among 230",
        "plain": "4 ids have 3 losses",
    }
    for name, words in messages.items():
        assert found[name].startswith("ValueError: ") and words in found[name], (name, found[name])
    assert "2 of 4 losses given to update() are negative or no numbers" in found["unsound"][0]
    assert found["again"] == found["lists"] == found["attached"] == "None", "once is enough"
    assert "iterate loader.weighted()" in found["unweighted"][0]
    assert not any("weighted()" in one and "iterate" in one for one in found["weighted"])


def test_a_learning_sampling_that_hears_nothing_says_so_once(outcome):
    found = outcome[case("no_losses")]
    (line,) = found["never"]
    assert "has heard of no losses in an epoch" in line
    assert found["after a look"] == "None", "what was left out is no epoch without losses"


def test_a_position_of_another_order_is_refused_within_an_epoch(outcome):
    found = outcome[case("positions")]
    assert "is of sampling 'importance', here is 'shade'" in found["other sampling"]
    assert "is of sampling 'importance', here is 'plain'" in found["to plain"]
    assert "is of sampling 'plain', here is 'importance'" in found["from plain"]
    assert found["between epochs"] == "None"
    assert "the state is damaged" in found["damaged"]


def test_the_pool_hears_of_a_subset_by_the_ids_of_the_whole(outcome):
    for sampling, heard in outcome[case("subset")].items():
        assert 100 <= heard["range"][0] < 110 and 190 <= heard["range"][1] < 200, sampling
        assert heard["epochs"] == 4
