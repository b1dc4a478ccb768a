"""What samplings do with a cache: what is read less, and what becomes of caches that are too small or too large."""

import json
import os
from functools import lru_cache
from pathlib import Path

import pytest
from collector import PACKAGE, run_warm

pytestmark = pytest.mark.own_python

JOB = Path(__file__).with_name("sampling_job.py")


def case(name, *arguments):
    return json.dumps([name, *arguments])


SAMPLINGS = ("plain", "importance", "reuse", "iis", "shade")
# Epochs, of which iCACHE's selection takes five to begin.
LONG, IIS_WARM_UP = 14, 5
CASES = [
    *[case("cached", sampling, 2) for sampling in SAMPLINGS],
    *[case("cached", sampling, 2, LONG) for sampling in ("plain", "iis", "shade")],
    case("cached", "reuse", 0),
    *[case("uses", count) for count in (2, 3)],
    case("window", "200KB"),
    case("window", "500KB"),
    case("window", "15KB"),
    case("window", "2MB"),
    case("window", "200KB", 100),
    *[case("window", "200KB", 8, {"uses": 3, "epochs": epochs}) for epochs in (5, 12, 20)],
    case("window", "200KB", 8, {"uses": 1}),
]


@pytest.fixture(scope="module")
def outcome(python, tmp_path_factory):
    return outcomes(python, str(tmp_path_factory.mktemp("sampling")))


@lru_cache(None)
def outcomes(python, folder):
    done = run_warm([python, JOB, *CASES], PYTHONPATH=str(PACKAGE), STALLSCOPE_RUNTIME_DIR=os.path.join(folder, "run"))
    assert done.code == 0, done.err
    return dict(zip(CASES, map(json.loads, done.out.splitlines())))


def later_hits(outcome, sampling, workers=2):
    hits = outcome[case("cached", sampling, workers)]["hits"][2:]
    return sum(hits) / len(hits)


def test_reuse_reads_about_half_of_what_a_shuffle_reads(outcome):
    """A fifth is cached, a half of that pinned: (1 - 0.095) / 2 of the uses are reads, of a shuffle 1 - 0.2."""
    assert 0.17 < later_hits(outcome, "plain") < 0.21
    for workers in (0, 2):
        assert later_hits(outcome, "reuse", workers) > 0.51


def test_importance_finds_what_it_draws_again(outcome):
    assert later_hits(outcome, "importance") > 0.5


def test_shade_and_iis_keep_what_is_drawn_more_often_and_a_static_pin_does_not(outcome):
    """Whatever is drawn, a pin hits its share of the data set: 0.195."""

    def hits(sampling):
        later = outcome[case("cached", sampling, 2, LONG)]["hits"][IIS_WARM_UP + 1 :]
        return sum(later) / len(later)

    assert 0.19 < hits("plain") < 0.2
    # SHADE draws by the rank of a loss in its batch; iCACHE leaves out a quarter of an epoch, the easier first.
    assert hits("shade") > 0.206 and hits("iis") > 0.24


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_use_of_a_sample_is_augmented_anew(outcome, sampling):
    assert outcome[case("cached", sampling, 2)]["alike"] == 0


@pytest.mark.parametrize("count", (2, 3))
def test_reuse_uses_all_samples_equally_often_and_weighs_none(outcome, count):
    found = outcome[case("uses", count)]
    uses = [0] * 1000
    for index in found["used"]:
        uses[index] += 1
    assert found["weights"] == [1.0] and len(found["used"]) == 12_000
    # Whole passes, and a part of one at the beginning and at the end; and the pinned ones in turn.
    assert min(uses) >= 12 - 2 * count and max(uses) <= 12 + 2 * count
    assert found["settled"]["uses"] == count
    assert abs(found["settled"]["pinned_share"] - 0.095) < 0.001 and abs(found["settled"]["window_share"] - 0.095) < 0.001


def test_the_window_comes_from_the_sizes_of_samples_and_cache(outcome):
    found = outcome[case("window", "200KB")]
    assert found["messages"] == "False" and found["settled"]["kind"] == "reuse"
    # A sample in twenty of the cache is left for what is under way.
    assert abs(found["settled"]["pinned_share"] + found["settled"]["window_share"] - 0.19) < 0.001
    large = outcome[case("window", "500KB")]["settled"]
    assert abs(large["pinned_share"] - 0.5 * 0.95 * 0.5) < 0.01, "half pinned, below half of the data set"
    narrow = outcome[case("window", "200KB", 100)]
    assert narrow["settled"]["kind"] == "plain" and "it needs a cache of" in narrow["messages"][0]


def test_where_reuse_gains_nothing_it_is_a_shuffle_and_says_so(outcome):
    assert "it needs a cache of 7%" in outcome[case("window", "15KB")]["messages"][0]
    assert "the cache holds the whole data set" in outcome[case("window", "2MB")]["messages"][0]
    few, some, many = (outcome[case("window", "200KB", 8, {"uses": 3, "epochs": epochs})] for epochs in (5, 12, 20))
    assert few["settled"]["kind"] == "plain" and "1 times instead of 3: 5 epochs are few" in few["messages"][0]
    assert some["settled"]["uses"] == 2 and "2 times instead of 3: 12 epochs" in some["messages"][0]
    assert many["settled"]["uses"] == 3 and many["messages"] == "False"
    assert outcome[case("window", "200KB", 8, {"uses": 1})]["settled"]["kind"] == "plain"
