"""`stallscope run --cache`: a script that knows nothing of it gets from torch's own loaders what it gets without, and reads less."""

import json
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest
from collector import run, run_plain, run_warm
from turning import Turned, once

JOB = Path(__file__).with_name("job_cache_job.py")
BESIDE, SETS = JOB.with_name("job_cache_beside.py"), JOB.with_name("job_cache_sets.py")
MIB = 1 << 20

# In which the number of hits is known.
COUNTED = (
    "fork-0", "fork-1", "fork-4", "spawn-2", "persistent-2", "out-of-order", "init-2", "single", "tensors", "batch-sampler", "subset", "paths", "named",
    "pieces", "arrays", "also-itself", "also-itself-2", "batched-0", "batched-2", "warned", "counting", "by-loader-0", "by-loader-2", "unbuffered", "odd",
    "indices", "properties", "folder-gone", "deleted",
    "rewritten-0", "rewritten-2", "evaluated",
)  # fmt: skip
OTHERS = ("raising-0", "raising-2", "recovering", "left-0", "left-2", "killed", "together", "alarmed")
# An `open` of the script's own comes first, as ours is around it then.
BESIDE_FILES = ("own-open", "global", "descriptor", "pipe", "drawn", "kept", "read1")
OF_SEVERAL = tuple(
    "several-" + name
    for name in (
        "pairs", "pairs-2", "pairs-spawn", "pairs-batched", "twice", "alone", "failing", "partners", "rewritten", "empty", "deleted", "shared",
    )
)  # fmt: skip
SMALL = ("fork-0", "fork-1", "also-itself-2")


class Runs:
    def __init__(self, python, names, cache_bytes=8 * MIB, job=JOB):
        with tempfile.TemporaryDirectory() as folder:
            env = {"STALLSCOPE_CACHE_BYTES": str(cache_bytes), "STALLSCOPE_RUNTIME_DIR": f"{folder}/run"}
            self.cached = run([python, job, f"{folder}/cached", *names], **env)
            self.plain = run_warm([python, job, f"{folder}/plain", *names])
        assert self.plain.code == 0, self.plain.err
        assert self.cached.code == 0, self.cached.err
        self.expected, self.got = ([json.loads(line) for line in one.out.splitlines()] for one in (self.plain, self.cached))
        uses = [record for process in self.cached.collector.processes for record in process.of("CacheUses")]
        self.hits = sum(record.hits for record in uses)
        facts = [fact for process in self.cached.collector.processes for fact in process.facts_of("unavailable")]
        self.notes = [fact["what"] for fact in facts]


@lru_cache(None)
def runs(python, names, **more):
    return Runs(python, names, **more)


@pytest.mark.parametrize("names", [COUNTED, OTHERS], ids=["counted", "others"])
def test_a_script_gets_what_it_gets_without(python, names):
    done = runs(python, names)
    assert done.got == done.expected


def test_files_come_from_memory_from_the_second_epoch_on(python):
    done = runs(python, COUNTED)
    assert done.hits == sum(line["hits"] for line in done.expected), done.notes


def test_what_samples_take_beside_their_files_and_how_is_as_without(python):
    """From files and pipes that were open before the trial, by an `open` and paths of the script's own, and of files that stay open."""
    done = runs(python, BESIDE_FILES, job=BESIDE)
    assert done.got == done.expected
    assert done.hits == sum(line["hits"] for line in done.expected), done.notes


def test_samples_of_several_files_come_from_memory_as_a_whole(python):
    done = runs(python, OF_SEVERAL, job=SETS)
    assert done.got == done.expected
    assert done.hits == sum(line["hits"] for line in done.expected), done.notes


def test_a_handler_for_ends_of_children_hears_of_none_of_ours(python):
    """Neither of the one that makes samples on trial nor of the one that starts the pool."""
    done = runs(python, ("children",))
    assert done.got == done.expected and done.hits


def test_a_loader_is_shown_with_the_data_set_of_the_script(python):
    facts = runs(python, ("fork-1",)).cached.collector.trainer().facts_of("loader")
    assert [fact["dataset"] for fact in facts] == ["Files"]


def test_uses_are_those_of_the_loader_that_is_served(python):
    """Not of the one that is iterated first, without gradients."""
    trainer = runs(python, ("checked-first",)).cached.collector.trainer()
    assert {record.loader for record in trainer.of("CacheUses")} == {1}


def test_a_data_set_beside_the_first_is_named_once(python):
    notes = [note for note in runs(python, COUNTED).notes if "trained on first" in note]
    assert len(notes) == 1
    assert "keeps the data set that was trained on first, a Files: nothing is kept of a further one, a Paths" in notes[0]


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_that_do_not_find_the_package_read_without(start_method, tmp_path):
    """What the launcher puts on PYTHONPATH is gone where the script sets that for programs of its own."""
    job = [sys.executable, JOB.with_name("spawned_job.py"), start_method]
    env = {"STALLSCOPE_CACHE_BYTES": str(8 * MIB), "STALLSCOPE_RUNTIME_DIR": f"{tmp_path}/run"}
    cached, plain = run([*job, tmp_path / "cached"], **env), run_plain([*job, tmp_path / "plain"])
    assert (cached.code, cached.err) == (plain.code, plain.err) == (0, "")
    assert json.loads(cached.out) == json.loads(plain.out)
    notes = [fact["what"] for process in cached.collector.processes for fact in process.facts_of("unavailable")]
    assert [note for note in notes if "the script has changed PYTHONPATH" in note]


@pytest.mark.own_python
def test_a_cache_that_holds_a_part_changes_nothing(python):
    done = runs(python, SMALL, cache_bytes=8000)
    assert done.got == done.expected
    assert 0 < done.hits < sum(line["hits"] for line in done.expected)
    several = runs(python, OF_SEVERAL[:2], cache_bytes=20_000, job=SETS)
    assert several.got == several.expected
    assert 0 < several.hits < sum(line["hits"] for line in several.expected)


@pytest.mark.own_python
def test_its_bytes_are_a_knob(python, tmp_path):
    env = {"STALLSCOPE_CACHE_BYTES": str(8 * MIB), "STALLSCOPE_RUNTIME_DIR": str(tmp_path / "run"), "UNTIL": str(tmp_path / "0")}
    turn = once(("cache.bytes", 4 * MIB), ("prefetch", 6), ("cache.bytes", 2 * MIB), until=tmp_path)
    done = Turned([python, JOB, tmp_path / "turned", "lasting"], turn, **env)
    assert done.code == 0, done.err
    assert done.was("cache.bytes", 4 * MIB, "applied") and done.was("cache.bytes", 2 * MIB, "applied") and done.was("prefetch", 6, "applied")
    plain = run_warm([python, JOB, tmp_path / "plain", "lasting"])
    assert done.lines == [json.loads(plain.out)]
