"""A loader with a cache gives what it gives without one, and reads less."""

import json
import os
from functools import lru_cache
from pathlib import Path

import pytest
from cached_sets import FILES
from collector import PACKAGE, run_warm

pytestmark = pytest.mark.own_python

JOB = Path(__file__).with_name("cached_job.py")
BYTES = sum(1000 + n for n in range(FILES))

# Whatever else a loader may be is in test_matrix.py.
STARTED = [("shuffle", 2, "spawn", True), ("distributed", 2, None, True), ("shuffle", 2, "forkserver", True)]

# Data set -> what the one line says.
PLAIN = {
    "memory": "sample 0 opens no file through Python's open()",
    "two": "both open ",
    "one": "sample 0 opens no file",
    "text": 'sample 0 opens a file in another way than "rb"',
    "mapped": "it needs the file itself, not its bytes",
    "headers": "it reads only a part of its files",
    "threaded": "sample 0 opens no file through Python's open()",
    "not-bytes": "its fetch(0) gives a list, not bytes",
    "single": "it has fewer than two samples",
    "strange": "decode(fetch(0)) is not its sample 0",
    "typed": "it makes another sample of a file's bytes than of the file",
}
RECOGNISED = ("whole", "backwards", "pathlib", "relative", "first", "pairs")


def case(name, *arguments):
    return json.dumps([name, *arguments])


CASES = [
    *[case("same", *one) for one in STARTED],
    *[case("gone", workers) for workers in (0, 2)],
    *[case(name, workers) for name in ("parts", "named", "rewritten") for workers in (0, 2)],
    *[case("other", name, 0) for name in (*PLAIN, *RECOGNISED, "fussy", "sometimes-not-bytes", "timed")],
    case("resumed"),
    case("alone"),
    *[case("other", name, 2) for name in ("one", "whole", "first", "pairs")],
    *[case("failing", name, cache) for name in ("vanishing", "broken", "unreliable") for cache in ("1MiB", None)],
    *[case(name) for name in ("repeated", "beside", "fingerprints", "small", "keys", "grown", "stream")],
]


@lru_cache(None)
def outcomes(python, folder):
    env = {"PYTHONPATH": str(PACKAGE), "STALLSCOPE_RUNTIME_DIR": os.path.join(folder, "run")}
    done = run_warm([python, JOB, folder, *CASES], **env)
    assert done.code == 0, done.err
    return dict(zip(CASES, map(json.loads, done.out.splitlines())))


@pytest.fixture(scope="module")
def outcome(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cached")
    return lambda name, *arguments: outcomes(python, str(folder))[case(name, *arguments)]


@pytest.mark.parametrize("one", STARTED)
def test_order_and_samples_are_the_same_as_without_a_cache(outcome, one):
    same = outcome("same", *one)
    assert same["order"], "the draws are torch's"
    assert same["samples"] and same["epochs_differ"], "and so is what is made of them"
    assert same["after"], "training's own generators give what they give without"
    assert same["figures"]["hits"] > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_the_second_epoch_reads_nothing_when_all_of_it_fits(outcome, workers):
    gone = outcome("gone", workers)
    assert gone["same"]
    figures = gone["figures"]
    assert (figures["hits"], figures["misses"]) == (FILES, FILES)
    assert (figures["source_bytes"], figures["pool_bytes"], figures["kept_samples"]) == (BYTES, BYTES, FILES)


def test_uses_of_one_sample_within_an_epoch_are_augmented_differently(outcome):
    repeated = outcome("repeated")
    assert [sample[0] for sample in repeated["got"]] == repeated["draws"]
    by_index = {}
    for index, size, last, *drawn in repeated["got"]:
        assert (size, last) == (1000 + index, index)
        by_index.setdefault(index, set()).add(tuple(drawn[:2]))
    assert all(len(drawn) == 3 for drawn in by_index.values())
    assert (repeated["figures"]["misses"], repeated["figures"]["hits"]) == (FILES, 2 * FILES)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_fetches_and_decodes_is_cut_there_and_shared_by_its_subsets(outcome, workers):
    parts = outcome("parts", workers)
    assert parts["same"] and parts["messages"] == []
    for start, (got, figures) in enumerate(zip(parts["subsets"], parts["figures"])):
        assert [sample[0] for sample in got] == [1000 + n for n in range(start, FILES, 2)]
        # What one decoded was its own to change.
        assert [sample[1] for sample in got] == [n + 1 for n in range(start, FILES, 2)]
        assert (figures["misses"], figures["hits"]) == (0, len(got))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_only_the_data_set_understands_it_is_asked_for_itself(outcome, workers):
    named = outcome("named", workers)
    assert named["got"] == named["plain"]
    # Sample 3 is kept; what is asked for in other ways is read anew.
    assert (named["figures"]["misses"], named["figures"]["hits"]) == (1, 3)


@pytest.mark.parametrize("name", PLAIN)
def test_a_data_set_that_cannot_be_cut_is_read_as_ever_and_one_line_says_why(outcome, name):
    other = outcome("other", name, 0)
    assert other["same"] and other["figures"] == {}
    (line,) = other["messages"]
    assert "goes on without its cache" in line and PLAIN[name] in line


def test_trying_a_sample_leaves_no_open_file_to_workers(outcome):
    other = outcome("other", "one", 2)
    assert other["same"] and PLAIN["one"] in other["messages"][0]


@pytest.mark.parametrize("name,workers", [*((name, 0) for name in RECOGNISED), ("whole", 2), ("first", 2), ("pairs", 2)])
def test_data_sets_of_files_are_recognised(outcome, name, workers):
    other = outcome("other", name, workers)
    assert other["same"] and other["messages"] == []
    assert other["figures"]["hits"] > 0


def test_a_sample_that_needs_its_file_after_all_gets_it(outcome):
    fussy = outcome("other", "fussy", 0)
    assert fussy["same"] and "sample 3 of Fussy could not be made from what the cache has" in fussy["messages"][0]
    assert len(fussy["messages"]) == 1


def test_a_data_set_of_which_no_two_samples_are_the_same_is_recognised(outcome):
    timed = outcome("other", "timed", 0)
    assert timed["messages"] == [] and timed["figures"]["hits"] == FILES


def test_a_data_set_needs_no_more_than_to_fetch_and_decode(outcome):
    alone = outcome("alone")
    assert alone["messages"] == [] and alone["figures"]["hits"] == FILES
    assert alone["sizes"] == [1000 + n for n in range(FILES)]


def test_what_is_fetched_and_is_no_bytes_is_not_kept(outcome):
    mixed = outcome("other", "sometimes-not-bytes", 0)
    assert mixed["same"] and mixed["figures"]["hits"] == 12


@pytest.mark.parametrize("name", ["vanishing", "broken"])
def test_errors_are_the_data_sets_own(outcome, name):
    cached, plain = outcome("failing", name, "1MiB"), outcome("failing", name, None)

    def without_folder(samples):
        return [[str(part).split("'")[0] for part in sample] for sample in samples]

    assert without_folder(cached["got"]) == without_folder(plain["got"])
    assert cached["messages"] == [] and cached["figures"]["misses"] == FILES


def test_a_source_that_fails_for_a_while_is_asked_again(outcome):
    cached, plain = (outcome("failing", "unreliable", cache)["got"] for cache in ("1MiB", None))
    error = ["ConnectionResetError", "sample 9 cannot be had", "None"]
    assert [n for n, sample in enumerate(plain) if sample[0] == error[0]] == [4, 9]
    assert [n for n, sample in enumerate(cached) if sample == error] == [9], "the other one is its own error"
    assert len(cached) == len(plain) == FILES


def test_other_threads_open_what_they_always_opened(outcome):
    beside = outcome("beside")
    assert beside["kinds"] == ["BufferedReader"]
    assert beside["figures"]["hits"] == 20 * FILES


def test_another_data_set_or_a_changed_one_never_gets_its_bytes(outcome):
    prints = outcome("fingerprints")
    sizes = [1000 + n for n in range(FILES)]
    assert prints["first"] == [0, FILES, sizes]
    assert prints["again"] == [FILES, 0, sizes], "a second loader on the same data shares it"
    assert prints["twin"] == [0, FILES, [size + 1000 for size in sizes]]
    assert prints["shorter"] == [0, 9, sizes[:9]]
    assert prints["changed"] == [0, FILES, [*sizes[:-1], 2100]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_was_written_anew_is_read_anew_by_its_next_use(outcome, workers):
    rewritten = outcome("rewritten", workers)
    assert rewritten["outcome"] == [[9, 11, 12], [99, 11, 12], [99, 11, 12], [99, 111, 12], [99, 111, 12]]
    first, second = rewritten["figures"]
    assert first["looks_at_files"] and first["misses"] == FILES + 1, "and no other one is"
    assert (second["misses"], second["hits"]) == (1, 2 * FILES - 1)


def test_a_budget_that_is_too_small_for_a_sample_is_no_cache(outcome):
    none = outcome("small")["none"]
    assert none["same"] and "is no file that fits into the cache" in none["messages"][0]


def test_a_budget_for_some_samples_keeps_some(outcome):
    some = outcome("small")["some"]
    assert some["same"] and some["messages"] == []
    figures = some["figures"]
    assert figures["kept_bytes"] <= figures["capacity_bytes"] == 12_288
    assert 0 < figures["hits"] < FILES and figures["hits"] + figures["misses"] == 2 * FILES


def test_a_position_is_taken_up_as_without_a_cache(outcome):
    resumed = outcome("resumed")
    assert resumed["same"]
    # The first loader's workers had read ahead.
    assert resumed["figures"]["hits"] + resumed["figures"]["misses"] == FILES - 3 * 4


def test_keys_that_are_no_numbers_are_not_kept(outcome):
    keys = outcome("keys")
    assert keys["same"] and keys["figures"]["hits"] == len(range(0, FILES, 3))


def test_a_data_set_that_grows_is_right(outcome):
    grown = outcome("grown")
    assert [sum(epoch, []) for epoch in grown["got"]] == [list(range(9)), list(range(FILES)), list(range(FILES))]
    assert grown["figures"]["hits"] == FILES


def test_a_stream_has_no_cache_and_says_so(outcome):
    stream = outcome("stream")
    assert sum(stream["got"], []) == [*range(9), *range(9)]
    (line,) = stream["messages"]
    assert "its samples have no index" in line
