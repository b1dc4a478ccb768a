"""Packages of samples of low importance: what is drawn stays the same, the source is asked less often, and nothing is left behind."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from collector import PACKAGE, run_warm

pytestmark = pytest.mark.own_python

JOB = Path(__file__).with_name("packages_job.py")


def outcome(python, folder, *case, **more):
    done = run_warm([python, JOB, json.dumps(case)], PYTHONPATH=str(PACKAGE), STALLSCOPE_RUNTIME_DIR=str(folder / "run"), **more)
    assert done.code == 0, done.err
    return json.loads(done.out), done.err


@pytest.fixture(scope="module")
def plain(python, tmp_path_factory):
    """Without packages, by sampling."""
    return {one: outcome(python, tmp_path_factory.mktemp(one), "gives", one, False)[0] for one in ("importance", "iis")}


@pytest.mark.parametrize("sampling", ("importance", "iis"))
@pytest.mark.parametrize("workers, start", ((0, None), (2, "fork"), (2, "spawn")))
def test_what_is_drawn_stays_the_same_and_the_source_is_asked_less_often(python, tmp_path, plain, sampling, workers, start):
    found, _ = outcome(python, tmp_path, "gives", sampling, True, workers, start)
    without = plain[sampling]
    assert found["epochs"] == without["epochs"]
    figures = found["figures"]
    assert figures["hits"] + figures["misses"] + figures["substitutions"] == found["uses"]
    assert 0 < figures["package_reads"] < figures["packaged"] / 2
    assert figures["package_written_bytes"] >= figures["package_read_bytes"] > 2000 * figures["packaged"]
    # Those that tell the data set from others are fetched beside.
    beside = found["fetches"][-1] - (figures["misses"] - figures["packaged"])
    assert 0 <= beside <= 40 and abs(figures["source_bytes"] - 2000 * (found["fetches"][-1] - beside)) == 0
    later = [(one["fetches"][-1] - one["fetches"][1]) / found["uses"] for one in (found, without)]
    # With importance what is drawn again within an epoch, and so known, is mostly what MIN keeps.
    assert later[0] < {"importance": 0.95, "iis": 0.8}[sampling] * later[1], later
    names = [name.split("/") for name in found["within"]]
    assert len({run for run, *_ in names}) == 1 and found["after"] == []
    assert not {"packaged", "package_reads"} & set(without["figures"])


def test_what_may_be_given_for_others_may_come_in_packages(python, tmp_path):
    """Which draws these are depends on what is kept at the moment: the job looks that each sample is the one its id says."""
    found, _ = outcome(python, tmp_path, "gives", "iis", True, 0, None, 7, {"options": {"substitute": 0.1}})
    figures = found["figures"]
    assert figures["substitutions"] > 0 and figures["packaged"] > 0
    assert figures["hits"] + figures["misses"] + figures["substitutions"] == found["uses"]
    assert figures["substitutions"] <= 0.1 * found["uses"]


def test_a_file_that_was_rewritten_is_read_anew(python, tmp_path):
    found, _ = outcome(python, tmp_path, "files", "importance")
    assert found["before"]["packaged"] > 0 or found["before"]["package_written_bytes"] > 0
    if found["after"]["looks_at_files"]:
        before, after = (one["misses"] - one["packaged"] for one in (found["before"], found["after"]))
        assert after - before > 0


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("doing", ("flip", "cut", "remove", "kill_pool"))
def test_what_is_damaged_or_gone_costs_reads_and_nothing_else(python, tmp_path, plain, doing, workers):
    found, err = outcome(python, tmp_path, "hurt", doing, workers)
    assert found["epochs"] == plain["importance"]["epochs"][:4]
    if doing != "kill_pool":
        assert found["figures"]["packaged"] > 0
    # Workers warn to where they write errors.
    heard = [one for one in (found["warnings"] if workers == 0 else err.splitlines()) if "packages rest for now" in one]
    assert len(heard) <= max(workers, 1) * (1 if workers == 0 else 4)
    assert bool(heard) == (doing == "remove"), heard


def test_a_full_disk_ends_no_read(python, tmp_path, plain):
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: a disk of a few packages is mounted as root alone")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"SKIPPED: no tmpfs can be mounted ({mounted.stderr.strip()})")
    try:
        found, _ = outcome(python, tmp_path, "full", str(disk))
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)
    assert found["epochs"] == plain["importance"]["epochs"][:4]
    assert found["figures"]["package_written_bytes"] > 0
    assert [one for one in found["warnings"] if "No space left" in one and "read from the source" in one]


def test_what_a_killed_job_left_goes_with_the_next(python, tmp_path):
    found, _ = outcome(python, tmp_path, "killed")
    assert any(name.endswith(".package") for name in found["left"])
    assert not set(found["left"]) & set(found["within"]) and found["after"] == []


def test_what_cannot_be_is_refused_in_a_sentence(python, tmp_path):
    found, _ = outcome(python, tmp_path, "refused")
    for words, part in zip(found, ("next draws",) * 3 + ("say cache=", "leave one of them out", "PathLike", "packages=FOLDER", "packages_limit=", "packages_limit=")):
        assert words and part in words, (words, part)


def test_a_folder_that_others_may_write_to_has_no_packages(python, tmp_path, plain):
    found, _ = outcome(python, tmp_path, "others_may_write")
    assert found["epochs"] == plain["importance"]["epochs"][:3]
    assert "packaged" not in found["figures"]
    assert len([one for one in found["warnings"] if "other users may write to it" in one]) == 1
