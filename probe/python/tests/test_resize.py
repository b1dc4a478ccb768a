"""Depth and workers of a running DataLoader change, and the job gets what it would have got."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from collector import environment, run_warm
from conftest import needs, torch_version
from turning import Turned, at_random, gives, job, old, once, pairs_are_right, skipped, until_its_reason, whole


@pytest.fixture
def own_python():
    """For what no torch does otherwise than another."""
    version, reason = torch_version(sys.executable)
    if version is None:
        skipped(f"SKIPPED: no torch ({reason})")
    return sys.executable


def test_300_changes_in_an_epoch_leave_every_sample_in_its_place_and_nothing_behind(python, tmp_path):
    changes = at_random(300, gap_s=0.005)

    def turn(trainer):
        changes(trainer)
        if not changes.state["left"]:
            (tmp_path / "0").touch()

    done = Turned(job(python, "fork", batches=1000), turn, UNTIL=tmp_path)
    assert (done.code, done.err, changes.state["left"]) == (0, "", 0)
    gives(done, "fork", [whole(1000)])
    assert done.group_is_gone
    assert len({wait.worker for wait in pairs_are_right(done)}) > 2


KINDS = ["persistent", "pinned", "file-system", "stream", "stream-persistent", "break", "failing"]


@pytest.fixture(scope="module")
def kinds(python, tmp_path_factory):
    kinds = KINDS if old(python) else [*KINDS, "out-of-order"]
    folder = tmp_path_factory.mktemp("turned")
    turn = until_it_was_seen(at_random(10**9, gap_s=0.03), folder)
    return Turned(job(python, *kinds), turn, UNTIL=folder, STALLSCOPE_DIVIDE_STREAMS="1")


def until_it_was_seen(change, folder, least=8):
    """Changes, and lets a loader's steps be slow until a new depth and, where they may come at any time, new workers
    were seen: a machine that takes long to start a worker must not end the epochs before."""
    depths, enough = set(), set()

    def turn(trainer):
        loader = trainer.of("Wait")[-1].loader
        if loader not in enough and ("prefetch", loader) in trainer.knobs():
            depth, state = trainer.standing("prefetch", loader)
            if state == "applied" and depth in range(least, 51):
                depths.add(loader)
            of_workers = trainer.knobs()["workers", loader]["reason"]
            if loader in depths and (loader == 4 and "split anew" in of_workers or loader == 5 or len({wait.worker for wait in trainer.of("Wait", loader)}) > 2):
                enough.add(loader)
                (folder / str(loader)).touch()
        change(trainer)

    return turn


def test_every_kind_of_loader_can_be_turned_and_gives_what_it_would_have_given(kinds, python):
    assert (kinds.code, kinds.err) == (0, "")
    assert kinds.group_is_gone
    pairs_are_right(kinds)
    for scenario in ("persistent", "pinned", "file-system"):
        gives(kinds, scenario, [whole()] * 2)
    if not old(python):
        lines, left = kinds.of("out-of-order")
        assert [sorted(line["got"]) for line in lines] == [whole()] * 2 and left == []
    for loader in range(4):
        made = {wait.worker for wait in kinds.trainer.of("Wait", loader)}
        assert len(made) > 2 and any(kinds.was("prefetch", depth, "applied", loader) for depth in range(8, 51))


def test_loops_that_break_off_and_broken_samples_are_as_ever(kinds):
    gives(kinds, "break", [list(range(52))] * 12)
    (line,), left = kinds.of("failing")
    assert line["got"] == [n for n in whole() if n // 2 % 25 != 24] and line["broken"] == 8 and left == []


def test_a_stream_takes_its_depth_at_once_and_its_workers_at_the_next_epoch(kinds):
    for scenario in ("stream", "stream-persistent"):
        lines, left = kinds.of(scenario)
        assert [sorted(line["got"]) for line in lines] == [whole()] * 2 and left == []
    stream, persistent = 4, 5
    assert any("split anew" in reason for reason in kinds.reasons("workers", "pending", stream))
    assert any(kinds.was("prefetch", depth, "applied", stream) for depth in range(8, 51))
    assert any(kinds.was("prefetch", depth, "applied", persistent) for depth in range(8, 51))
    knob = kinds.trainer.knobs()["workers", persistent]
    assert not knob["available"] and "a share of the data set" in knob["reason"]
    # No worker is in both epochs, and none comes or goes within one.
    outcome = [fact["pids"] for fact in kinds.trainer.facts_of("workers") if fact["loader"] == stream]
    assert len(outcome) == 2 and not set(outcome[0]) & set(outcome[1])
    assert {wait.worker for wait in kinds.trainer.of("Wait", stream)} <= {*outcome[0], *outcome[1]}


def test_a_streams_workers_are_as_many_as_asked_for_in_the_next_epoch(own_python, tmp_path):
    turn = once(("workers", 3), until=tmp_path)
    done = Turned(job(own_python, "stream", batches=100), turn, UNTIL=tmp_path, STALLSCOPE_DIVIDE_STREAMS="1")
    assert (done.code, done.err) == (0, "")
    assert done.was("workers", 3, "applied")
    outcome = [len(fact["pids"]) for fact in done.trainer.facts_of("workers")]
    assert outcome == [2, 3]


def test_a_stream_keeps_its_workers_unless_the_user_says_that_it_divides_itself(own_python, tmp_path):
    done = Turned(job(own_python, "undivided", batches=40), once(("prefetch", 7), until=tmp_path), UNTIL=tmp_path)
    assert done.code == 0, done.err
    knob = done.trainer.knobs()["workers", 0]
    assert not knob["available"] and "STALLSCOPE_DIVIDE_STREAMS" in knob["reason"]
    assert done.was("prefetch", 7, "applied")
    gives(done, "undivided", [whole(40)] * 2)


def test_a_streams_workers_stay_where_other_ranks_count_on_its_batches(own_python):
    done = Turned(job(own_python, "stream", batches=20), lambda trainer: None, RANK="0", WORLD_SIZE="2")
    assert done.code == 0, done.err
    knob = done.trainer.knobs()["workers", 0]
    assert not knob["available"] and "other ranks wait for as many" in knob["reason"]


def test_a_worker_that_is_added_has_the_data_set_that_the_others_have(own_python, tmp_path):
    turn = until_its_reason("workers", 4, "the script has changed the data set", tmp_path)
    done = Turned(job(own_python, "changing", batches=300), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "")
    lines, _ = done.of("changing")
    assert [line["states"] for line in lines] == [[0], [1], [2]]
    assert lines[0]["most"] == 2 and lines[2]["most"] == 4
    assert any("the script has changed the data set" in reason for reason in done.reasons("workers", "pending"))
    assert done.was("workers", 4, "applied")


def test_persistent_workers_of_a_data_set_that_was_changed_get_no_others(own_python, tmp_path):
    turn = until_its_reason("workers", 4, "the script has changed the data set", tmp_path)
    done = Turned(job(own_python, "changing-persistent", batches=100), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "")
    lines, _ = done.of("changing-persistent")
    assert [(line["states"], line["most"]) for line in lines] == [([0], 2)] * 3
    assert any("the script has changed the data set" in reason for reason in done.reasons("workers", "refused"))


def test_an_epoch_does_not_give_the_scripts_own_workers_what_is_meant_for_all(own_python):
    done = Turned(job(own_python, "begins", batches=4000), once(("workers", 6), ("prefetch", 24)))
    assert done.code == 0, done.err
    (line,), _ = done.of("begins")
    # Those that are added come one by one later, and each with its share.
    assert (line["workers"], line["under_way"]) == (2, 8)
    assert line["got"] == whole(4000)


# Each takes long, and is tried with one torch.
NOT_FORKED = [
    pytest.param("spawn", marks=pytest.mark.system_python), pytest.param("forkserver", marks=pytest.mark.own_python),
]  # fmt: skip


@pytest.mark.parametrize("method", NOT_FORKED)
def test_workers_that_are_not_forked_come_and_go(python, method, tmp_path):
    asks = (("workers", 3), ("prefetch", 9), ("workers", 1))
    # They import torch before they are ready, which takes long beside other load.
    done = Turned(job(python, method, batches=4000), once(*asks, until=tmp_path), UNTIL=tmp_path)
    assert done.code == 0, done.err
    lines, _ = done.of(method)
    assert [line["got"] for line in lines] == [whole(4000)]
    assert done.group_is_gone
    for asked in asks:
        assert done.was(*asked, "applied"), done.states
    pairs_are_right(done)


def test_a_stateful_loader_resumes_from_what_it_saved_while_its_depth_moved():
    done = Turned(job(needs("torchdata.stateful_dataloader"), "stateful"), at_random(100))
    assert done.code == 0, done.err
    (first, second), _ = done.of("stateful")
    assert first["got"] == whole() and sorted(second["got"]) == whole()
    assert first["resumed"] == second["resumed"] == [True]
    assert "state_dict" in done.trainer.knobs()["workers", 0]["reason"]


def test_an_interrupt_while_workers_leave_leaves_none_behind(own_python):
    done = Turned(job(own_python, "interrupted-at-its-end", batches=4000), once(("workers", 4)))
    assert done.code == 0, done.err
    (line,), left = done.of("interrupted-at-its-end")
    assert line["interrupted"] and left == []


def test_interrupts_and_the_interpreters_end_leave_nobody_behind(python):
    # In this order: the last one's iterator is still there at the end.
    done = Turned(job(python, "interrupted", "exits"), at_random(200))
    assert done.code == 0, done.err
    (line,), left = done.of("interrupted")
    # Python itself loses an interrupt that comes while a process is forked.
    assert line["ended"] >= 4 and left == []
    assert done.of("exits")[0][0]["workers"] and done.group_is_gone


def test_a_worker_that_is_killed_while_it_leaves_is_torchs_own_error(python, tmp_path):
    def turn(trainer, killed=[]):  # noqa: B006
        if trainer.standing("workers", 0)[1] == "own":
            trainer.ask("workers", 1, 0)
            (tmp_path / "asked").touch()
        elif not killed and "last batches" in trainer.knobs()["workers", 0]["reason"]:
            killed.append(trainer.facts_of("workers")[-1]["pids"][-1])
            os.kill(killed[0], signal.SIGKILL)

    done = Turned(job(python, "slow", batches=60), turn, UNTIL=tmp_path)
    assert done.code == 0, done.err
    (line,), left = done.of("slow")
    # Or that of the socket over which the worker was handing a batch.
    assert line["error"].startswith(("DataLoader worker ", "[Errno "))
    assert line["got"] == whole()[: len(line["got"])] and left == [] and done.group_is_gone


def test_a_new_worker_that_is_killed_or_fails_before_it_is_ready_costs_nothing(python, tmp_path):
    ended = "A new worker ended while it started (exit code -9)."

    def turn(trainer, killed=[], seen=[]):  # noqa: B006
        if trainer.of("Wait")[-1].loader == 1:
            fails(trainer)
        elif trainer.standing("workers", 0)[1] == "own":
            trainer.ask("workers", 3, 0)
        elif not killed and "are starting" in trainer.knobs()["workers", 0]["reason"]:
            children = Path(f"/proc/{trainer.pid}/task/{trainer.pid}/children").read_text().split()
            new = set(map(int, children)) - {pid for fact in trainer.facts_of("workers") for pid in fact["pids"]}
            killed += new
            for pid in new:
                os.kill(pid, signal.SIGKILL)
        elif ended == trainer.knobs()["workers", 0]["reason"]:
            seen.append(ended)
            # The first look may have been at the state of before.
            if len(seen) == 2:
                (tmp_path / "0").touch()

    fails = once(("workers", 4), ("workers", 1), loader=1, until=tmp_path)
    done = Turned(job(python, "sleepy", "particular"), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    gives(done, "sleepy", [whole()] * 2)
    gives(done, "particular", [whole()] * 2)
    pairs_are_right(done)
    assert done.reasons("workers", "refused") >= {ended}
    assert done.was("workers", 2, "refused", 1) and done.was("workers", 1, "applied", 1)
    why = "worker_init_fn fails in worker 2: IndexError: there is nothing for a third worker."
    assert done.reasons("workers", "refused", 1) >= {why}


def test_a_new_worker_that_is_sent_away_runs_no_handler_of_the_scripts(own_python, tmp_path):
    """Which may save, or end the job."""

    def turn(trainer, asked=[]):  # noqa: B006
        if ("workers", 0) not in trainer.knobs():
            return
        if not asked:
            asked.append(4)
            trainer.ask("workers", 4, 0)
        elif len(asked) == 1 and "are starting" in trainer.knobs()["workers", 0]["reason"]:
            asked.append(2)
            trainer.ask("workers", 2, 0)
            (tmp_path / "0").touch()

    done = Turned(job(own_python, "handled"), turn, UNTIL=tmp_path)
    assert (done.code, done.err) == (0, "") and done.group_is_gone
    lines, left = done.of("handled")
    assert lines[0]["got"] == whole() and not lines[1]["handled"] and left == []


def test_a_worker_that_starts_while_training_is_killed_does_not_stay(own_python, tmp_path):
    done = Turned(job(own_python, "orphaned"), once(("workers", 3)), UNTIL=tmp_path)
    assert done.code == -signal.SIGKILL and done.group_is_gone


def test_the_job_draws_the_same_numbers_and_new_workers_have_torchs_seeds(python, tmp_path):
    asks = once(("workers", 4), ("prefetch", 12), loader=1, until=tmp_path)
    turn = until_it_was_seen(at_random(10**9), tmp_path)

    def turn_both(trainer):
        (asks if trainer.of("Wait")[-1].loader == 1 else turn)(trainer)

    done = Turned(job(python, "augmented", "seeded"), turn_both, UNTIL=tmp_path)
    plain = run_warm(job(python, "augmented"))
    assert done.of("augmented")[0] == [json.loads(plain.out.splitlines()[0])]
    assert len({wait.worker for wait in done.trainer.of("Wait", 0)}) > 2
    ((line,), _) = done.of("seeded")
    drawn = [line["got"][n : n + 4] for n in range(0, len(line["got"]), 4)]
    assert [sample for sample, *_ in drawn] == whole()
    assert len({base_seed for _, _, base_seed, _ in drawn}) == 1
    assert {(worker, workers) for _, worker, _, workers in drawn} == {(0, 2), (1, 2), (2, 4), (3, 4)}


@pytest.mark.parametrize("depth", [1, 40], ids=["less deep", "deeper"])
@pytest.mark.parametrize("scenario", ["shared", "growing"])
def test_what_an_order_asks_for_at_its_end_is_as_it_would_be(python, scenario, depth, tmp_path):
    """A generator that it shares with training; the length of a data set that grows."""
    asked, seen = set(), set()

    def turn(trainer):
        for loader in (0, 1):
            # A data set that grows has other batches by then than torch began with.
            had = sum(wait.loader == loader for wait in trainer.of("Wait"))
            if ("prefetch", loader) in trainer.knobs() and loader not in asked and had > 12:
                asked.add(loader)
                trainer.ask("prefetch", depth, loader)
            # Training is slow until then: it must not be over before a busy machine has come to the answer.
            if loader in seen:
                (tmp_path / str(loader)).touch()
            elif loader in asked and ("prefetch", loader) in trainer.knobs() and trainer.standing("prefetch", loader) == (depth, "applied"):
                seen.add(loader)

    turned = Turned(job(python, scenario, batches=60), turn, UNTIL=tmp_path)
    assert turned.was("prefetch", depth, "applied") and turned.was("prefetch", depth, "applied", 1)
    plain = run_warm(job(python, scenario, batches=60))
    assert turned.of(scenario)[0] == [json.loads(line) for line in plain.out.splitlines()[:-1]]


def test_what_was_asked_for_holds_for_later_epochs_and_for_no_other_loader(own_python):
    done = Turned(job(own_python, "rebuilt"), once(("workers", 3), ("prefetch", 11)))
    assert (done.code, done.err) == (0, "")
    lines, left = done.of("rebuilt")
    assert [line["got"] for line in lines] == [whole()] * 3 and left == []
    assert [line["most"] for line in lines][1:] == [3, 3]
    assert all(line["evaluation"] == [False, 2, 4] for line in lines)
    assert done.trainer.standing("prefetch", 0) == (11, "applied")
    assert done.trainer.standing("workers", 1) == (2, "own")


def test_depth_is_bounded_by_descriptors(own_python, tmp_path):
    few = ["bash", "-c", 'ulimit -n 200; exec "$@"', "job"]
    bounded(own_python, few, 6, "a batch takes 10 descriptors", tmp_path)


def test_depth_is_bounded_by_shared_memory(own_python, tmp_path):
    small = ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"', "job"]
    if subprocess.run([*small, "true"], capture_output=True).returncode:
        skipped("SKIPPED: a small /dev/shm of its own needs root")
    bounded(own_python, small, 12, "in /dev/shm are free", tmp_path)


@pytest.fixture
def group():
    """A memory group of 2 GiB."""
    v1 = Path("/sys/fs/cgroup/memory")
    folder = (v1 if v1.is_dir() else Path("/sys/fs/cgroup")) / f"stallscope-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")).write_text(str(2 << 30))
    except OSError as error:
        skipped(f"SKIPPED: a memory group of its own needs root and the memory controller ({error})")
    yield folder
    deadline = time.monotonic() + 20
    while folder.exists() and time.monotonic() < deadline:
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.1)


def test_depth_is_bounded_by_the_memory_of_the_jobs_group(own_python, group, tmp_path):
    inside = ["bash", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "job"]
    bounded(own_python, inside, 12, "of memory are free", tmp_path)


def test_workers_that_come_bring_no_more_batches_than_fit(own_python, tmp_path):
    few = ["bash", "-c", 'ulimit -n 200; exec "$@"', "job"]
    done = Turned(job(own_python, "large"), once(("prefetch", 900), ("workers", 6), until=tmp_path), before=few, UNTIL=tmp_path)
    assert done.code == 0, done.err
    # A reason of before may be seen beside the state.
    (reason,) = [one for one in done.reasons("prefetch", "refused") if "At most " in one]
    most = int(reason.split("At most ")[1].split()[0])
    assert 4 <= most < 12 and done.was("workers", 6, "applied")
    # Two for each worker, as torch would have it, are twelve.
    assert done.was("prefetch", most, "own") and not done.was("prefetch", 12, "own")


def bounded(python, before, fits, why, until):
    done = Turned(job(python, "large"), once(("prefetch", 900), ("prefetch", fits), until=until), before=before, UNTIL=until)
    assert done.code == 0, done.err
    assert any(why in reason for reason in done.reasons("prefetch", "refused"))
    assert done.was("prefetch", 4, "refused") and done.was("prefetch", fits, "applied")


def test_what_cannot_be_turned_says_why(own_python):
    done = Turned(job(own_python, "in-process", "own-iterator", batches=20), lambda trainer: None)
    reasons = (
        "makes its batches in the training process",
        "resize: unavailable: the loader's iterator is of class OwnIterator",
    )
    assert done.code == 0, done.err
    for loader, (scenario, reason) in enumerate(zip(("in-process", "own-iterator"), reasons)):
        gives(done, scenario, [whole(20)] * 2)
        for name in ("prefetch", "workers"):
            knob = done.collector.trainer().knobs()[name, loader]
            assert not knob["available"] and reason in knob["reason"]


@pytest.mark.parametrize("framework", ["lightning", "accelerate", "transformers"])
def test_a_frameworks_loader_can_be_turned(framework, tmp_path):
    job = [needs(framework), Path(__file__).with_name("frameworks.py"), framework, tmp_path / "run"]
    turn = until_it_was_seen(at_random(10**9, gap_s=0.03), tmp_path, least=9)
    done = Turned(job, turn, UNTIL=tmp_path)
    assert done.code == 0 and done.group_is_gone, done.err
    assert [line["trained"] for line in done.lines] == [list(range(480))] * 2
    assert len({wait.worker for wait in pairs_are_right(done)}) > 4
    assert any(done.was("prefetch", depth, "applied") for depth in range(9, 51))


UNKNOWN = """
import torch.utils.data.dataloader as dataloader
from stallscope._hooks import loader_knobs, resize
base = dataloader._MultiProcessingDataLoaderIter

class Other(base):
    _try_put_index, _process_data, _reset = base._try_put_index, base._process_data, base._reset
    _shutdown_workers = base._shutdown_workers

    def _next_data(self):
        return self._ledger_of_theirs

class Loop:
    def _worker_loop(dataset_kind, dataset, index_queue, weather):
        pass

for given in ((Other, dataloader._utils.worker), (base, Loop)):
    try:
        resize.know(*given)
    except Exception as error:
        print(error)
"""


def test_a_torch_that_is_built_otherwise_is_left_alone(python, tmp_path):
    (tmp_path / "unknown.py").write_text(UNKNOWN)
    env = environment("/nowhere")
    done = subprocess.run([python, tmp_path / "unknown.py"], env=env, capture_output=True, text=True)
    messages = done.stdout.splitlines()
    assert messages == ["_next_data of Other uses _ledger_of_theirs", "a worker takes weather"], done.stderr


ANOTHER = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader
from stallscope._hooks import knobs

class Stop(Exception):
    pass

def stop(*_):
    raise Stop("of the job's own")

signal.signal(signal.SIGUSR1, stop)

def turn(value):
    if value == 7:
        raise LookupError("seven is missing")
    if value == 8:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(60)
    return value, knobs.APPLIED, ""

knobs.register("interval", "steps", 100, 1, 1000, turn)
loader = DataLoader(list(range(10**6)), batch_size=1)
try:
    for _ in loader:
        time.sleep(0.002)
except Stop as stopped:
    print('{"stopped": "%s"}' % stopped)
"""


def test_anything_else_in_the_process_can_be_turned_as_well(own_python, tmp_path):
    (tmp_path / "another.py").write_text(ANOTHER)
    asked = once(("interval", 5), ("interval", 7), ("interval", 8), loader=None)
    done = Turned([own_python, tmp_path / "another.py"], asked)
    assert done.lines == [{"stopped": "of the job's own"}], done.err
    assert done.was("interval", 5, "applied", None) and done.was("interval", 5, "refused", None)
    assert "It could not be turned: LookupError: seven is missing." in done.reasons("interval", "refused", None)
