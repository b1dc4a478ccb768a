"""Several ranks save together, and each goes on as if nothing had happened."""

import json
import os
import signal
from pathlib import Path

import pytest
from collector import PACKAGE, run_warm
from conftest import has

JOB = Path(__file__).with_name("ranks_job.py")


@pytest.fixture(scope="session")
def ranks_python(python):
    if not has(python, "torch.distributed.distributed_c10d"):
        pytest.skip(f"SKIPPED: the torch of {python} has no distributed training")
    return python


def started(python, folder, **case):
    """What all ranks printed, in the order of their lines, and their errors."""
    done = run_warm([python, JOB, folder, json.dumps({"ranks": 2, **case})], PYTHONPATH=str(PACKAGE))
    return [json.loads(line) for line in done.out.splitlines()], done.err


def train(python, folder, **case):
    """Each rank's facts, by rank."""
    lines, err = started(python, folder, **case)
    outcome = [{"err": err} for _ in range(case.get("ranks", 2))]
    for facts in lines:
        outcome[facts.pop("rank")].update(facts)
    return outcome


def steps(folder):
    return sorted(int(name.partition("-")[2].partition(".")[0]) for name in os.listdir(folder) if name.startswith("step-"))


@pytest.mark.parametrize("sharded", [False, True])
def test_each_rank_goes_on_where_it_was(ranks_python, tmp_path, sharded):
    reference = train(ranks_python, tmp_path / "whole", sharded=sharded)
    assert [rank["code"] for rank in reference] == [0, 0], reference[0]["err"]
    assert train(ranks_python, tmp_path / "cut", sharded=sharded, stop=8)[0]["code"] == 0
    (saved,) = steps(tmp_path / "cut")
    assert saved >= 5
    resumed = train(ranks_python, tmp_path / "cut", sharded=sharded)
    for rank, (before, after) in enumerate(zip(reference, resumed)):
        assert after["start"] == saved and after["end"] == before["end"], after["err"]
        if sharded:
            assert after["shard"] == (1000 + rank) * (rank + saved)


def test_ranks_with_different_numbers_of_batches_do_not_wait_for_each_other(ranks_python, tmp_path):
    case = {"uneven": True, "options": {"every": 1}}
    whole = train(ranks_python, tmp_path / "whole", **case)
    assert [rank["code"] for rank in whole] == [0, 0] and [rank["steps"] for rank in whole] == [12, 16], whole[0]["err"]
    # By hand, behind it.
    assert steps(tmp_path / "whole") == [6, 12]
    resumed = train(ranks_python, tmp_path / "whole", epochs=3, **case)
    assert [(rank["code"], rank["start"], rank["steps"]) for rank in resumed] == [(0, 12, 18), (0, 12, 20)], resumed[0]["err"]


def test_one_rank_that_is_to_end_has_all_of_them_save(ranks_python, tmp_path):
    outcome = train(ranks_python, tmp_path, options={"every": 1000}, term_rank_1_at=4, pause_s=0.2)
    assert outcome[1]["code"] == -signal.SIGTERM
    (saved,) = steps(tmp_path)
    assert saved >= 4 and f"step-{saved:09} is the last checkpoint" in outcome[1]["err"]


@pytest.mark.parametrize("step", [1, 4])
def test_what_cannot_be_saved_has_no_rank_wait_for_another(ranks_python, tmp_path, step):
    reference = train(ranks_python, tmp_path / "whole")
    outcome = train(ranks_python, tmp_path / "unsaved", unsaved=step, options={"every": 2})
    assert [rank["code"] for rank in outcome] == [0, 0], outcome[0]["err"]
    assert [rank["end"] for rank in outcome] == [rank["end"] for rank in reference]
    assert "No checkpoint of step" in outcome[0]["err"] and "rank 0: " in outcome[0]["err"]


def test_another_number_of_ranks(ranks_python, tmp_path):
    for folder, sharded in (("one", False), ("parts", True)):
        assert train(ranks_python, tmp_path / folder, sharded=sharded, stop=8)[0]["code"] == 0
    (alone,) = train(ranks_python, tmp_path / "one", ranks=1)
    assert alone["start"] >= 5 and alone["code"] == 0 and alone["steps"] > 12, "the epoch begins anew"
    (alone,) = train(ranks_python, tmp_path / "parts", ranks=1, sharded=True)
    assert alone["code"] == 1 and "has the parts of 2 ranks and here are 1: start with 2" in alone["err"]


ALONE = {
    "model": "model has other parameters on rank 1 than on rank 0, which saves for all: have each rank save its own with sharded=True",
    "object": "rank 1 has 'shard' and rank 0, which saves for all, has not: give it to rank 0 too",
}


@pytest.mark.parametrize("alone", ALONE)
def test_what_another_rank_alone_has_and_nobody_would_save_is_refused_on_all(ranks_python, tmp_path, alone):
    outcome = train(ranks_python, tmp_path, alone=alone)
    assert [rank["code"] for rank in outcome] == [1, 1] and outcome[0]["err"].count(ALONE[alone]) == 2, outcome[0]["err"]


# Of the rank that is killed, and seconds after it began to save: before its part is there, while that is committed, behind it.
KILLS = [(1, 0.0), (0, 0.002), (1, 0.005), (0, 0.02)]


def test_a_rank_killed_in_the_midst_of_a_commit_leaves_all_parts_or_none(ranks_python, tmp_path):
    kills = KILLS * int(os.environ.get("STALLSCOPE_RANK_KILLS", "1"))
    epochs = 2 * len(kills) + 2
    case = {"sharded": True, "epochs": epochs, "options": {"every": 1000}}
    reference = train(ranks_python, tmp_path / "whole", **case)
    lines, err = started(ranks_python, tmp_path / "killed", **case, kills=kills)
    starts = [facts for facts in lines if "start" in facts]
    assert len(starts) == 2 * (len(kills) + 1), err
    # The ranks of a life print in any order, but no life begins before the one before it is over.
    for life in range(len(kills) + 1):
        (one, other) = sorted(starts[2 * life : 2 * life + 2], key=lambda facts: facts["rank"])
        assert one["start"] == other["start"], "both go on from the same checkpoint"
        for facts in (one, other):
            assert facts["shard"] == (1000 + facts["rank"]) * (facts["rank"] + (facts["start"] or 0)), "and from its parts"
    assert starts[-1]["start"] >= 5 * len(kills), "what was committed before a kill is there"
    ends = {facts["rank"]: facts["end"] for facts in lines if "end" in facts}
    assert ends == {rank: facts["end"] for rank, facts in enumerate(reference)}
    assert [facts["code"] for facts in lines if "code" in facts][-2:] == [0, 0], err
    assert not (tmp_path / "killed" / "quarantine").exists(), "nothing torn was ever taken for a checkpoint"
