"""Traces of real loaders: all that was handed over, in order, and never at the job's expense."""

import json
import os
from pathlib import Path

import pytest
from collector import PACKAGE, run_warm

pytestmark = pytest.mark.own_python

JOB = Path(__file__).with_name("trace_job.py")
HEADER = "epoch,id,bytes,score"


def traced(python, folder, case, *more):
    env = {"PYTHONPATH": str(PACKAGE), "STALLSCOPE_RUNTIME_DIR": str(folder / "run")}
    done = run_warm([python, JOB, folder / "uses.csv", case, *more], **env)
    assert done.code == 0, done.err
    return json.loads(done.out)


def rows(path):
    header, *lines = path.read_text().splitlines()
    assert header == HEADER
    return [[float(field) for field in line.split(",")] for line in lines]


@pytest.mark.parametrize("workers", ("0", "2"))
def test_every_use_is_recorded_in_the_order_of_the_hand_over(python, tmp_path, workers):
    outcome = traced(python, tmp_path, "plain", workers)
    found = rows(tmp_path / "uses.csv")
    assert [row[1] for row in found] == outcome["used"] and len(found) == 3 * 100
    assert [row[0] for row in found] == [epoch for epoch in range(3) for _ in range(100)]
    assert outcome["messages"] == []
    # Sizes differ from sample to sample, and those that the cache did not take were seen all the same.
    assert all(row[2] == 100 + row[1] for row in found), "each was seen before it was handed over"
    assert all(row[3] == 0 for row in found)


def test_losses_given_to_update_are_the_scores_of_later_uses(python, tmp_path):
    outcome = traced(python, tmp_path, "importance", "0")
    found = rows(tmp_path / "uses.csv")
    assert [row[1] for row in found] == outcome["used"]
    assert {row[3] for row in found[:25]} == {0.0} and any(row[3] > 0 for row in found[100:])


def test_a_subset_is_recorded_by_the_ids_behind_it(python, tmp_path):
    outcome = traced(python, tmp_path, "subset", "0")
    assert [row[1] for row in rows(tmp_path / "uses.csv")] == outcome["used"]
    assert min(outcome["used"]) >= 50


def test_without_a_cache_sizes_are_not_known(python, tmp_path):
    outcome = traced(python, tmp_path, "uncached", "0")
    found = rows(tmp_path / "uses.csv")
    assert [row[1] for row in found] == outcome["used"] and {row[2] for row in found} == {1.0}


def test_a_trace_of_before_is_replaced_and_no_other_file(python, tmp_path):
    (tmp_path / "uses.csv").write_text(HEADER + "\n0,1,2,3\n")
    outcome = traced(python, tmp_path, "plain", "0")
    assert len(rows(tmp_path / "uses.csv")) == 300 and outcome["messages"] == []
    (tmp_path / "uses.csv").write_text("a thesis")
    outcome = traced(python, tmp_path, "plain", "0")
    assert len(outcome["used"]) == 300 and len(outcome["messages"]) == 1 and "is no trace" in outcome["messages"][0]
    assert (tmp_path / "uses.csv").read_text() == "a thesis"


def test_a_link_is_never_followed(python, tmp_path):
    """Others may write into the folder: what is emptied or added to would be of their choosing."""
    thesis = tmp_path / "thesis"
    thesis.write_text(HEADER)
    (tmp_path / "uses.csv").symlink_to("thesis")
    outcome = traced(python, tmp_path, "plain", "0")
    assert len(outcome["used"]) == 300 and len(outcome["messages"]) == 1, outcome["messages"]
    assert thesis.read_text() == HEADER
    (tmp_path / "uses.csv").unlink()
    outcome = traced(python, tmp_path, "swapped", "0")
    assert len(outcome["used"]) == 300 and len(outcome["messages"]) == 1, outcome["messages"]
    assert thesis.read_text() == HEADER


def test_nobody_is_waited_for_at_a_pipe(python, tmp_path):
    os.mkfifo(tmp_path / "uses.csv")
    # Open at both ends, so that a job that opens it does not wait here.
    pipe = os.open(tmp_path / "uses.csv", os.O_RDWR)
    os.write(pipe, b"x" * 100)
    outcome = traced(python, tmp_path, "plain", "0")
    assert len(outcome["used"]) == 300 and "no plain file" in outcome["messages"][0]
    assert len(os.read(pipe, 200)) == 100, "nothing was read from it"
    os.close(pipe)


def test_a_full_disk_ends_the_trace_with_one_warning_and_not_the_job(python, tmp_path):
    outcome = traced(python, tmp_path, "full", "0")
    assert len(outcome["used"]) == 300 and outcome["epochs"] == 3
    assert len(outcome["messages"]) == 1 and "no more of the trace" in outcome["messages"][0], outcome["messages"]


def test_other_ranks_write_beside_the_first(python, tmp_path):
    outcome = traced(python, tmp_path, "rank", "0")
    assert not (tmp_path / "uses.csv").exists()
    assert [row[1] for row in rows(tmp_path / "uses-rank3.csv")] == outcome["used"]


def test_a_forked_child_writes_nothing(python, tmp_path):
    outcome = traced(python, tmp_path, "forked", "0")
    assert [row[1] for row in rows(tmp_path / "uses.csv")] == outcome["used"]


def test_samples_without_an_index_cannot_be_traced(python, tmp_path):
    assert "needs a data set whose samples have an index" in traced(python, tmp_path, "stream", "0")["raised"]
