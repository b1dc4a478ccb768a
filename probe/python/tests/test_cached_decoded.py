"""A loader that keeps decoded samples gives what it gives without a cache, and keeps them only where that is right."""

import json
import os
from functools import lru_cache
from pathlib import Path

import pytest
from cached_sets import FILES
from collector import PACKAGE, run_warm

pytestmark = pytest.mark.own_python

JOB = Path(__file__).with_name("decoded_job.py")
USES = 3 * FILES
BYTES = sum(1000 + n for n in range(FILES))

SAME = [(0,), (2,), (2, "spawn")]
# Data set -> why only what was fetched is kept.
ENCODED = {
    "drawing": "its decode() draws random numbers",
    "own-drawing": "its decode() draws random numbers",
    "hidden": "its decode() gives something else each time",
    "unkeepable": "what decode() gives cannot be kept: it has a builtins.set",
    "earlier": "it has no augment(), so that decode() may be random",
    "coin": "it has no augment(), so that decode() may be random",
}


def case(name, *arguments):
    return json.dumps([name, *arguments])


CASES = [
    *[case("same", *one) for one in SAME],
    *[case("other", name, 0) for name in (*ENCODED, "sometimes", "without-samples", "wrong", "fresh", "unused")],
    case("other", "in-parts", 0, False),
    case("other", "hidden", 2),
    case("agreed"), case("apart"), case("spoiled"), case("share", True), case("share", False), case("copied"),
]  # fmt: skip


@lru_cache(None)
def outcomes(python, folder):
    env = {"PYTHONPATH": str(PACKAGE), "STALLSCOPE_RUNTIME_DIR": os.path.join(folder, "run")}
    done = run_warm([python, JOB, folder, *CASES], **env)
    assert done.code == 0, done.err
    return dict(zip(CASES, map(json.loads, done.out.splitlines())))


@pytest.fixture(scope="module")
def outcome(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoded")
    return lambda name, *arguments: outcomes(python, str(folder))[case(name, *arguments)]


@pytest.mark.parametrize("one", SAME)
def test_samples_are_the_same_bit_for_bit_though_they_are_augmented_in_place(outcome, one):
    same = outcome("same", *one)
    assert same["same"]
    assert same["different"] == [3], "three uses, three augmentations"
    figures = same["figures"]
    assert figures["kept"] == "decoded" and "ms a sample decoded" in figures["kept_because"]
    assert (figures["misses"], figures["hits"]) == (FILES, 2 * USES - FILES)
    assert figures["source_bytes"] == BYTES, "what the source gave, not what was made of it"
    assert figures["pool_bytes"] > 2400 * figures["hits"]


@pytest.mark.parametrize("name,workers", [*((name, 0) for name in ENCODED), ("hidden", 2)])
def test_where_decoded_samples_cannot_be_kept_what_was_fetched_is(outcome, name, workers):
    other = outcome("other", name, workers)
    assert other["messages"] == []
    assert other["same"]
    assert (other["figures"]["kept"], other["figures"]["kept_because"]) == ("encoded", ENCODED[name])
    assert (other["figures"]["misses"], other["figures"]["hits"]) == (FILES, FILES)


def test_cheap_decoding_keeps_what_was_fetched(outcome):
    cheap = outcome("other", "in-parts", 0, False)
    assert cheap["same"] and cheap["figures"]["kept"] == "encoded"
    assert cheap["figures"]["pool_bytes"] == BYTES


def test_single_samples_that_cannot_be_kept_or_made_are_as_without_a_cache(outcome):
    sometimes = outcome("other", "sometimes", 0)
    assert sometimes["messages"] == [] and sometimes["figures"]["kept"] == "decoded"
    broken = ["ZeroDivisionError", "sample 7 is broken", "None"]
    labels = [label for label in sometimes["got"] if label != broken]
    assert sorted(labels) == sorted([*range(7), *range(8, FILES)] * 2)
    assert sometimes["got"].count(broken) == 2
    assert sometimes["figures"]["hits"] == FILES - 3


def test_parts_may_be_all_that_a_data_set_has(outcome):
    alone = outcome("other", "without-samples", 0)
    assert alone["messages"] == [] and alone["figures"]["kept"] == "decoded" and alone["figures"]["hits"] == FILES
    assert [sorted(sample[0] for sample in epoch) for epoch in alone["got"]] == [[*range(FILES)]] * 2


def test_parts_that_are_not_the_sample_are_found_out(outcome):
    wrong = outcome("other", "wrong", 0)
    assert wrong["same"] and wrong["figures"] == {}
    assert "augment(decode(fetch(0))) is not its sample 0" in wrong["messages"][0]


def test_an_augment_that_may_be_no_part_of_a_sample_is_not_called(outcome):
    unused = outcome("other", "unused", 0)
    assert unused["same"] and unused["figures"] == {}
    assert "changed nothing on trial" in unused["messages"][0]


def test_a_loader_that_was_iterated_can_be_copied(outcome):
    copied = outcome("copied")
    assert copied["labels"] == [*range(FILES)] and copied["figures"]["hits"] >= FILES


def test_an_augmentation_that_asks_no_generator_is_one(outcome):
    fresh = outcome("other", "fresh", 0)
    assert fresh["messages"] == [] and (fresh["figures"]["kept"], fresh["figures"]["hits"]) == ("decoded", FILES)


def test_who_comes_later_keeps_what_the_first_one_keeps(outcome):
    agreed = outcome("agreed")
    assert agreed["same"]
    assert agreed["first"]["kept"] == agreed["second"]["kept"] == "decoded"
    assert (agreed["second"]["hits"], agreed["second"]["misses"]) == (FILES, 0)


def test_one_form_never_gets_the_other_ones_bytes(outcome):
    apart = outcome("apart")
    assert apart["same"]
    assert [figures["kept"] for figures in apart["figures"]] == ["decoded", "encoded"]
    assert [(figures["misses"], figures["hits"]) for figures in apart["figures"]] == [(FILES, FILES)] * 2


def test_what_is_no_sample_is_a_miss(outcome):
    spoiled = outcome("spoiled")
    assert spoiled["same"] and spoiled["messages"] == []
    assert spoiled["put"] == [True] * 3
    assert (spoiled["figures"]["misses"], spoiled["figures"]["hits"]) == (FILES + 2 * 3, 2 * (FILES - 3))


def test_plans_know_how_much_the_cache_holds_of_the_form_that_is_kept(outcome):
    decoded, encoded = outcome("share", True), outcome("share", False)
    assert (decoded["kept"], encoded["kept"]) == ("decoded", "encoded")
    assert 0 < decoded["share"] < encoded["share"] < 1
