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


# Each child is sent the signal before it has run any code of its own: by a hook that comes before all of ours, or by its parent.
FORKS = """
import os, signal, sys, threading, time
folder, number, count, thread, hooked = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "thread", sys.argv[5] == "hooked"
signal.signal(number, signal.SIG_DFL)
if hooked:
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), number))
import torch, stallscope
model = torch.nn.Linear(1, 1)
made = [stallscope.Checkpointer(f"{folder}/{at}", model=model, signals=[number]) for at in range(count)]
masks = []

def forks():
    lost = 0
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    for _ in range(2 if hooked else 30):
        child = os.fork()
        if not child:
            time.sleep(20)
            os._exit(0)
        if not hooked:
            os.kill(child, number)
        ended = time.monotonic() + 1
        while not (found := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < ended:
            time.sleep(0.0005)
        if not found[0]:
            lost += 1
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        else:
            assert os.WTERMSIG(found[1]) == number
    masks.append(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    print(lost)

if thread:
    one = threading.Thread(target=forks)
    one.start()
    one.join()
else:
    forks()
assert masks == [[signal.SIGUSR2]], masks
for one in made:
    one.close()
    if not os.fork():
        os._exit(0)
    os.wait()
assert signal.getsignal(number) == signal.SIG_DFL
"""


@pytest.mark.parametrize("how", ["main", "thread"])
@pytest.mark.parametrize("sent", ["hooked", "by the parent"])
@pytest.mark.parametrize("number, count", [(signal.SIGTERM, 1), (signal.SIGTERM, 3), (signal.SIGUSR1, 2)])
def test_a_child_that_is_just_forked_ends_by_the_signal(tmp_path, number, count, sent, how):
    """Also where several Checkpointers watch, and whichever thread forks. Its thread blocks what it blocked before."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-c", FORKS, str(tmp_path), str(int(number)), str(count), how, sent]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout == "0\n", (done.stdout, done.stderr)


def test_a_child_of_a_closed_checkpointer_has_the_handlers_from_before(tmp_path):
    before = signal.signal(NUMBER, signal.SIG_DFL)
    first, second = _checkpointers(tmp_path, 2)
    first.close()
    child = os.fork()
    if child == 0:
        os._exit(0 if getattr(signal.getsignal(NUMBER), "__name__", "") == "_came_in_child" else 1)
    _, status = os.waitpid(child, 0)
    second.close()
    after = signal.signal(NUMBER, before)
    assert status == 0 and after == signal.SIG_DFL


def test_a_handler_that_the_script_sets_later_is_the_childs_as_well(tmp_path):
    before = signal.signal(NUMBER, signal.SIG_DFL)
    (one,) = _checkpointers(tmp_path, 1)
    later = []
    signal.signal(NUMBER, lambda number, frame: later.append(number))
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), NUMBER)
        os._exit(0 if later == [NUMBER] else 1)
    _, status = os.waitpid(child, 0)
    one.close()
    signal.signal(NUMBER, before)
    assert status == 0
