"""Workers are added only where the job gets what it would have got, and holds nothing that it would not have held."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import torch_version
from turning import Turned, gives, once, skipped, until_its_reason, whole

JOB = Path(__file__).with_name("adding.py")


def adding(scenario):
    version, reason = torch_version(sys.executable)
    if version is None:
        skipped(f"SKIPPED: no torch ({reason})")
    return [sys.executable, JOB, 200, scenario]


def test_what_fails_in_an_added_worker_alone_is_made_by_the_scripts_own(tmp_path):
    turn = until_its_reason("workers", 4, "A worker that was added fails", tmp_path)
    done = Turned(adding("table"), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "table", [whole()] * 2)
    assert any("IndexError: list index out of range" in reason for reason in done.reasons("workers", "refused"))
    assert done.was("workers", 2, "refused")


@pytest.mark.parametrize(
    "scenario, what, epochs",
    [("recorded", "holds an open file", 2), ("numbered", "reads from a place in ", 2), ("sequential", "holds an iterator (range_iterator)", 1)],
)
def test_a_worker_stays_alone_with_what_one_process_alone_can_take_from(scenario, what, epochs, tmp_path):
    turn = until_its_reason("workers", 3, what, tmp_path)
    done = Turned(adding(scenario), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, scenario, [whole()] * epochs)
    assert any(what in reason for reason in done.reasons("workers", "refused"))


def test_an_added_worker_holds_no_pipe_that_the_script_opened_meanwhile(tmp_path):
    done = Turned(adding("piped"), once(("workers", 3), until=tmp_path), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    (ended, got), left = done.of("piped")
    assert ended["ended"] == 0 and got["got"] == whole() and left == []


def test_shared_memory_and_logs_are_no_files_that_are_read_on():
    from stallscope._hooks import one_taker

    def found(descriptor):
        os.write(descriptor, b"something")
        with subprocess.Popen(["sleep", "60"], pass_fds=[descriptor]) as child:
            try:
                return one_taker._read_together(child.pid)
            finally:
                child.kill()

    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory, tempfile.TemporaryDirectory(dir="/var/tmp") as disk:
        for path, mode, is_read in [
            (f"{memory}/torch", "w+b", False), (f"{disk}/log", "a+b", False), (f"{disk}/samples", "w+b", True),
        ]:
            with open(path, mode, buffering=0) as file:
                assert (found(file.fileno()) is not None) == is_read, path
