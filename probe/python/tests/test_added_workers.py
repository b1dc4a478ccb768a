"""Workers are added only where the job gets what it would have got, and holds nothing that it would not have held."""

import json
import multiprocessing
import os
import socket
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from collector import run_warm
from conftest import torch_version
from turning import Turned, gives, once, skipped, until_its_reason, whole

JOB = Path(__file__).with_name("adding.py")


def adding(scenario, batches=200):
    version, reason = torch_version(sys.executable)
    if version is None:
        skipped(f"SKIPPED: no torch ({reason})")
    return [sys.executable, JOB, batches, scenario]


def test_what_fails_in_an_added_worker_alone_is_made_by_the_scripts_own(tmp_path):
    turn = until_its_reason("workers", 4, "A worker that was added fails", tmp_path)
    done = Turned(adding("table"), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "table", [whole()] * 2)
    assert any("IndexError: list index out of range" in reason for reason in done.reasons("workers", "refused"))
    assert done.was("workers", 2, "refused")


@pytest.mark.parametrize(
    "scenario, what, epochs",
    [("recorded", "holds an open file", 2), ("numbered", "reads from a place in ", 2), ("sequential", "holds an iterator (range_iterator)", 1), ("unordered", "in_order=False", 2), ("queued", "reads from a place in pipe:", 1)],
)
def test_a_worker_stays_alone_with_what_one_process_alone_can_take_from(scenario, what, epochs, tmp_path):
    turn = until_its_reason("workers", 3, what, tmp_path)
    done = Turned(adding(scenario), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, scenario, [whole()] * epochs)
    assert any(what in reason for reason in done.reasons("workers", "refused"))


def torchs(scenario, tmp_path, **more):
    """What the job prints without us."""
    (tmp_path / "0").touch()
    done = run_warm(adding(scenario), UNTIL=tmp_path, **more)
    assert done.code == 0, done.err
    return [json.loads(line)["got"] for line in done.out.splitlines()[:-1]]


def test_what_a_worker_opens_when_it_first_reads_is_not_opened_before_it_is_forked(tmp_path):
    """By a look at what stands for it: all workers would read from one place in the file."""
    done = Turned(adding("proxied"), lambda trainer: (tmp_path / "0").touch(), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "")
    gives(done, "proxied", [whole()] * 2)


def test_a_worker_that_would_not_find_the_package_is_not_started(tmp_path):
    turn = until_its_reason("workers", 4, "the script has changed PYTHONPATH", tmp_path)
    done = Turned(adding("another-path"), turn, limit_s=100, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "")
    gives(done, "another-path", [whole()])
    assert done.was("workers", 2, "refused")


def test_the_scripts_own_processes_are_numbered_as_without(tmp_path):
    expected = torchs("numbered-processes", tmp_path)
    (tmp_path / "0").unlink()
    done = Turned(adding("numbered-processes"), once(("workers", 4), until=tmp_path), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.was("workers", 4, "applied")
    lines, _ = done.of("numbered-processes")
    assert [line["got"] for line in lines] == expected


def test_workers_are_added_by_a_context_of_the_scripts(tmp_path):
    done = Turned(adding("own-context"), once(("workers", 3), until=tmp_path), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "own-context", [whole()] * 2)
    assert done.was("workers", 3, "applied")


def test_workers_that_are_refused_change_nobodys_turn(tmp_path):
    """Which worker makes a batch decides what that is drawn from."""
    expected = torchs("drawing", tmp_path)
    (tmp_path / "0").unlink()

    def turn(trainer, asked=[]):  # noqa: B006
        if ("workers", 0) not in trainer.knobs() or asked and trainer.standing("workers", 0)[1] != "refused":
            return
        # Each at another moment: it may have been the turn of the one that is next all the same.
        asked.append(trainer.ask("workers", 3 + len(asked) % 2, 0))
        if len(asked) > 8:
            (tmp_path / "0").touch()

    done = Turned(adding("drawing"), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert any("there is nothing for a third worker" in reason for reason in done.reasons("workers", "refused"))
    gives(done, "drawing", expected)


def test_a_worker_that_is_sent_away_takes_no_lock_with_it(tmp_path):
    def turn(trainer, asked=[]):  # noqa: B006
        if not asked and ("workers", 0) in trainer.knobs():
            asked.append(trainer.ask("workers", 3, 0))
        elif len(asked) == 1 and (tmp_path / "holds").exists():
            asked.append(trainer.ask("workers", 2, 0))
        elif len(asked) == 2 and trainer.standing("workers", 0)[1] == "applied":
            (tmp_path / "asked").touch()
            (tmp_path / "0").touch()

    done = Turned(adding("held-lock"), turn, limit_s=100, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "held-lock", [whole()] * 2)


@pytest.mark.parametrize("kind", ["", "-persistent"])
@pytest.mark.parametrize("scenario, why", [("ending", "ended before its first batch"), ("places", "had not made its first batch")])
def test_an_added_worker_that_ends_or_hangs_with_its_first_sample_costs_nothing(scenario, why, kind, tmp_path):
    turn = until_its_reason("workers", 4, why, tmp_path)
    done = Turned(adding(scenario + kind), turn, limit_s=100, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    # A place that is taken is nobody else's, also in the next epoch.
    gives(done, scenario + kind, [whole()] * (1 if scenario + kind == "places" else 2))
    assert any(why in reason for reason in done.reasons("workers", "refused"))


def test_what_fails_in_a_worker_that_was_given_up_is_not_the_jobs(tmp_path):
    turn = until_its_reason("workers", 3, "had not made its first batch", tmp_path)
    done = Turned(adding("outdone"), turn, limit_s=100, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "outdone", [whole()])


def test_a_worker_that_is_late_is_not_ended_while_it_hands_over(tmp_path):
    turn = until_its_reason("workers", 3, "had not made its first batch", tmp_path)
    done = Turned(adding("late"), turn, limit_s=100, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "late", [whole()])


@pytest.mark.parametrize("kind", ["", "-persistent"])
def test_a_worker_in_the_place_of_one_that_has_left_may_fail_as_well(kind, tmp_path):
    turn = once(("workers", 1), ("workers", 2), until=tmp_path)
    done = Turned(adding("known" + kind), turn, limit_s=100, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "known" + kind, [whole()] * (2 if kind else 1))
    assert any("ended before its first batch" in reason for reason in done.reasons("workers", "refused"))


def test_a_timeout_grows_with_the_workers_that_share_a_disk(tmp_path):
    done = Turned(adding("contended"), once(("workers", 6), until=tmp_path), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "contended", [whole()] * 2)
    assert done.was("workers", 6, "applied")


def test_none_is_added_to_workers_that_use_a_device(tmp_path):
    turn = until_its_reason("workers", 3, "use the device /dev/full", tmp_path)
    done = Turned(adding("device"), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "device", [whole()] * 2)
    assert done.was("workers", 2, "refused") and not done.was("workers", 3, "applied")


PIDS = Path("/sys/fs/cgroup/pids")


@pytest.mark.parametrize("spare", [6, 14])
def test_workers_are_added_only_where_there_may_be_as_many_processes_and_threads(spare, tmp_path):
    """With so many more than the job has without."""
    if os.getuid() != 0 or not os.access(PIDS / "cgroup.procs", os.W_OK):
        pytest.skip("SKIPPED: no group of processes can be made here")
    group = PIDS / f"stallscope-test-{os.getpid()}"
    group.mkdir()
    try:
        limited = []

        def turn(trainer):
            if not limited:
                limited.append(int((group / "pids.current").read_text()) + spare)
                (group / "pids.max").write_text(str(limited[0]))
            asked(trainer)

        asked = once(("workers", 12), until=tmp_path)
        before = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        done = Turned(adding("plain"), turn, before=before, UNTIL=tmp_path)
        assert (done.code, done.err) == (0, "") and done.group_is_gone
        gives(done, "plain", [whole()] * 2)
        assert done.was("workers", 2, "refused")
        assert any("processes and threads, and" in reason for reason in done.reasons("workers", "refused"))
    finally:
        group.rmdir()


@pytest.mark.parametrize("scenario", ["failing-order", "counted-order"])
def test_a_sampler_is_as_it_would_be_while_training_looks(scenario, tmp_path):
    """What it raises, and what it does at its end, comes no earlier where it is asked further ahead."""
    expected = torchs(scenario, tmp_path)
    (tmp_path / "0").unlink()
    done = Turned(adding(scenario), once(("prefetch", 40), until=tmp_path), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "")
    gives(done, scenario, expected)


def test_a_loader_whose_one_iterator_never_ends_is_turned_once_it_was_watched_for_two_passes(tmp_path):
    """It stayed pending for ever."""
    done = Turned(adding("endless", 8), once(("prefetch", 7), ("workers", 3), until=tmp_path), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    lines, left = done.of("endless")
    assert all(line["got"] == whole(8) for line in lines) and left == []
    assert done.was("prefetch", 7, "applied") and done.was("workers", 3, "applied")
    assert any("watched for a whole epoch" in reason for reason in done.reasons("prefetch", "pending"))


def test_connections_and_queues_of_all_kinds_are_for_one_worker_alone():
    pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
    from stallscope._hooks import outline

    context = ssl.create_default_context()
    with context.wrap_socket(socket.socket(), server_hostname="localhost") as connection, multiprocessing.Manager() as manager:
        for one in (connection, manager.Queue(), manager.JoinableQueue()):
            assert len(outline.taken({"session": [one]})) == 1, one
        # What is kept there may be a cache, which is for several.
        assert outline.taken(manager.dict(), manager.Lock()) == []


@pytest.mark.parametrize("scenario", ["meeting", "taking-turns"])
def test_none_is_added_where_workers_meet_as_they_begin(scenario, tmp_path):
    """It would wait for others, or take what is meant for one of them, who waits for ever."""
    done = Turned(adding(scenario), until_its_reason("workers", 3, "worker_init_fn uses a ", tmp_path), limit_s=100, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, scenario, [whole()] * 3)


def test_an_added_worker_has_no_part_in_locks_on_files_that_were_opened_meanwhile(tmp_path):
    done = Turned(adding("locking"), once(("workers", 3), until=tmp_path), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "locking", [whole()])


def test_modes_around_training_see_what_they_would_see(tmp_path):
    """One that counts or records what is done to tensors saw what we asked of those of the data set."""
    expected = torchs("seen", tmp_path)
    (tmp_path / "0").unlink()
    done = Turned(adding("seen"), once(("workers", 3), until=tmp_path), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "")
    gives(done, "seen", expected)


def test_a_length_that_does_something_is_asked_for_as_without(tmp_path):
    expected = torchs("grown", tmp_path)
    done = Turned(adding("grown"), lambda trainer: None, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "")
    gives(done, "grown", expected)


def test_a_length_is_asked_for_where_that_does_nothing():
    pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
    import numpy
    import torch
    from torch.utils.data import Subset, TensorDataset

    from stallscope._hooks import length

    class Counted:
        def __init__(self, count):
            self.held, self.array, self.many = [0] * count, numpy.zeros((count, 2)), self

        def __len__(self):
            return len(self.held) + min(0, self.array.shape[0])

    class Opening(Counted):
        def __len__(self):
            return len(self.opened())

        def opened(self):
            raise AssertionError("it was asked")

    class Through(Counted):
        def __len__(self):
            return len(self.many)

    assert [length.of(one) for one in (Counted(3), [1, 2], TensorDataset(torch.zeros(4)), Subset(Opening(3), [0, 1]))] == [3, 2, 4, 2]
    assert [length.of(one) for one in (Opening(3), Through(3), Subset([1], Opening(1)))] == [None, None, None]


@pytest.mark.parametrize("scenario", ["piped", "paired", "connected"])
def test_an_added_worker_holds_no_pipe_that_the_script_opened_meanwhile(scenario, tmp_path):
    done = Turned(adding(scenario), once(("workers", 3), until=tmp_path), UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    (ended, got), left = done.of(scenario)
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
