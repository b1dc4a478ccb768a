"""Signals in a process with several Checkpointers, and in its children: none is lost, whichever is closed first."""

import itertools
import os
import signal
import subprocess
import sys
import warnings

import pytest
from collector import PACKAGE

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402

NUMBER = signal.SIGUSR1


@pytest.fixture
def heard():
    heard = []
    before = signal.signal(NUMBER, lambda number, frame: heard.append(number))
    yield heard
    signal.signal(NUMBER, before)


def _checkpointers(folder, count):
    model = torch.nn.Linear(2, 1)
    return [stallscope.Checkpointer(folder / str(at), model=model, every=1000, signals=["SIGUSR1"]) for at in range(count)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_a_signal_after_all_are_closed_is_the_scripts(tmp_path, heard, order):
    checkpointers = _checkpointers(tmp_path, 3)
    for at in order:
        checkpointers[at].close()
    os.kill(os.getpid(), NUMBER)
    assert heard == [NUMBER]


@pytest.mark.parametrize("closed", [0, 1])
def test_one_that_is_left_saves_and_lets_the_signal_through(tmp_path, heard, closed):
    checkpointers = _checkpointers(tmp_path, 2)
    checkpointers.pop(closed).close()
    os.kill(os.getpid(), NUMBER)
    assert heard == []
    checkpointers[0].step()
    assert heard == [NUMBER]
    assert (tmp_path / str(1 - closed) / "step-000000001" / "verified").exists()


def test_a_forked_child_ends_by_the_signal(tmp_path):
    before = signal.signal(NUMBER, signal.SIG_DFL)
    checkpointers = _checkpointers(tmp_path, 2)
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), NUMBER)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    for one in checkpointers:
        one.close()
    signal.signal(NUMBER, before)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == NUMBER


LOOP = """
import sys, time
import torch
import stallscope

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.05)
        return index

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2)
    state = {"steps": 0}
    with stallscope.Checkpointer(sys.argv[1], state=state, every=10**6, signals=("SIGINT", "SIGUSR1")) as checkpointer:
        for batch in loader:
            state["steps"] += 1
            print("step", flush=True)
            checkpointer.step()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_whole_group_leaves_the_workers_for_the_last_checkpoint(tmp_path, number):
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    folder = tmp_path / "saved"
    # What pytest runs under may ignore Ctrl-C.
    reset = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler), "start_new_session": True}
    printed = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    job = subprocess.Popen([sys.executable, script, folder], env=env, **printed, **reset)
    assert [job.stdout.readline() for _ in range(2)] == ["step\n"] * 2
    os.killpg(job.pid, number)
    _, printed = job.communicate(timeout=200)
    assert job.returncode == -number, printed
    assert "worker" not in printed
    assert [name for name in os.listdir(folder) if name.startswith("step-")], printed


class _Late(Exception):
    pass


def test_what_a_handler_raises_within_a_restore_arrives(tmp_path):
    class Loading:
        def state_dict(self):
            return {"one": 1}

        def load_state_dict(self, state):
            os.kill(os.getpid(), NUMBER)

    def late(number, frame):
        raise _Late

    checkpointer = stallscope.Checkpointer(tmp_path, thing=Loading(), signals=())
    checkpointer.save(wait=True)
    before = signal.signal(NUMBER, late)
    try:
        with pytest.raises(_Late):
            checkpointer.restore()
    finally:
        signal.signal(NUMBER, before)
        checkpointer.close()


def test_a_save_behind_a_loop_that_was_interrupted_says_that_it_begins_the_next_epoch(tmp_path):
    for steps, folder in ((0, "before its first step"), (2, "behind a step")):
        loader = stallscope.DataLoader(range(24), batch_size=4)
        with stallscope.Checkpointer(tmp_path / folder, model=torch.nn.Linear(1, 1), loader=loader, signals=()) as checkpointer:
            with pytest.warns(RuntimeWarning, match="KeyboardInterrupt left the loop in mid-epoch.*signals="):
                try:
                    for number, _ in enumerate(loader):
                        if number == steps:
                            raise KeyboardInterrupt
                        checkpointer.step()
                except KeyboardInterrupt:
                    checkpointer.save(wait=True)


def test_a_save_behind_a_whole_epoch_or_a_break_says_nothing(tmp_path):
    loader = stallscope.DataLoader(range(24), batch_size=4)
    with stallscope.Checkpointer(tmp_path, model=torch.nn.Linear(1, 1), loader=loader, signals=()) as checkpointer, warnings.catch_warnings():
        warnings.simplefilter("error")
        for batches in (6, 2):
            for _ in itertools.islice(loader, batches):
                checkpointer.step()
            if batches == 2:
                checkpointer.save(wait=True)
                continue
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                checkpointer.save(wait=True)
