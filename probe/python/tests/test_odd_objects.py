"""Objects of a script's that answer otherwise than most, and a process that lets nothing be printed: samples and training are as with torch's own
loader and without a Checkpointer.
"""

import builtins
import contextlib
import operator
import os
import subprocess
import sys
import warnings

import pytest
from collector import PACKAGE, environment

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402
from stallscope.checkpoint import signals  # noqa: E402

SAMPLES = 12


class Files(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        with open(os.path.join(self.folder, f"{operator.index(index)}"), "rb") as file:
            return type(index).__name__, file.read()


class Unmeasured(Files):
    """May be endless for what it knows: who iterates it has a sampler."""

    def __len__(self):
        raise NotImplementedError


class Timed(int):
    """An index that a script has more of."""

    at, next_at, stands_for = "noon", None, 3


class OfJax:
    """As jax's arrays of one number are."""

    def __init__(self, number):
        self.number = number
        self.at = self

    def __index__(self):
        return self.number


class Answering:
    """A sampler that has only what it was given, and no other answer."""

    def __init__(self, **given):
        self.__dict__["given"] = given

    def __getattr__(self, name):
        return self.given[name]

    def __iter__(self):
        return iter(range(self.samples))

    def __len__(self):
        return self.samples


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "files").mkdir()
    for index in range(SAMPLES):
        (tmp_path / "files" / str(index)).write_bytes(bytes([index]) * 2000)
    return tmp_path / "files"


def listed(samples):
    return list(samples)


def epochs(loader):
    return [batch for _ in range(3) for batch in loader]


ODD = {
    "an index with attributes": (Files, lambda: [Timed(number) for number in range(SAMPLES)]),
    "an index of jax's": (Files, lambda: [OfJax(number) for number in range(SAMPLES)]),
    "no length": (Unmeasured, lambda: list(range(SAMPLES))),
    "a sampler that lacks what it was not given": (Files, lambda: Answering(samples=SAMPLES)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("cache", [None, "1MiB"])
@pytest.mark.parametrize("name", ODD)
def test_samples_are_as_with_torchs_loader(folder, name, cache, workers):
    kind, sampler = ODD[name]
    more = {"batch_size": 4, "num_workers": workers, "collate_fn": listed}
    expected = epochs(torch.utils.data.DataLoader(kind(folder), sampler=sampler(), **more))
    assert epochs(stallscope.DataLoader(kind(folder), sampler=sampler(), cache=cache, **more)) == expected


@pytest.mark.parametrize("name", ODD)
def test_a_checkpointer_takes_the_position_of_their_loader(folder, tmp_path, name):
    kind, sampler = ODD[name]

    def loader():
        return torch.utils.data.DataLoader(kind(folder), sampler=sampler(), batch_size=4, collate_fn=listed)

    whole = list(loader())
    with stallscope.Checkpointer(tmp_path / "saved", loader=(first := loader()), signals=()) as checkpointer:
        checkpointer.restore()
        batches = iter(first)
        got = [next(batches)]
        checkpointer.step()
        checkpointer.save(wait=True)
    with stallscope.Checkpointer(tmp_path / "saved", loader=(second := loader()), signals=()) as checkpointer:
        checkpointer.restore()
        assert got + list(second) == whole


class Knowing(torch.utils.data.Sampler):
    """Goes by what is behind its loader's subset."""

    def __init__(self):
        self.loader = None

    def __iter__(self):
        return iter(range(len(self.loader.dataset.dataset) - 1))

    def __len__(self):
        return SAMPLES - 1


def test_a_sampler_finds_what_is_behind_a_subset(folder):
    def got(make):
        sampler = Knowing()
        sampler.loader = make(torch.utils.data.Subset(Files(folder), range(SAMPLES - 1)), sampler=sampler, num_workers=1, collate_fn=listed)
        return list(sampler.loader)

    assert got(stallscope.DataLoader) == got(torch.utils.data.DataLoader)


class Read:
    """Has of a file what reading takes."""

    def __init__(self, data):
        self.data = data

    def read(self):
        return self.data

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@contextlib.contextmanager
def own_open():
    """The script's own, for files of which it has something else."""
    real, opened = builtins.open, []

    def own(path, *arguments, **more):
        if os.path.basename(str(path)) in ("5", "7"):
            opened.append(path)
            return Read(b"another")
        return real(path, *arguments, **more)

    builtins.open = own
    try:
        yield opened
    finally:
        builtins.open = real


def test_what_a_scripts_own_open_gives_is_given_and_asked_for_once(folder):
    with own_open() as opened:
        expected = epochs(torch.utils.data.DataLoader(Files(folder), batch_size=4, collate_fn=listed))
        once = len(opened)
        opened.clear()
        loader = stallscope.DataLoader(Files(folder), batch_size=4, collate_fn=listed, cache="1MiB")
        assert epochs(loader) == expected and len(opened) == once
        assert loader.cache_figures()["hits"] == 2 * (SAMPLES - 2)


def test_an_open_that_a_script_puts_in_later_gives_what_it_gives(folder):
    def got(make, **more):
        loader = make(Files(folder), batch_size=4, collate_fn=listed, **more)
        before = list(loader)
        with own_open():
            within = list(loader)
        return before, within, list(loader)

    assert got(stallscope.DataLoader, cache="1MiB") == got(torch.utils.data.DataLoader)


# What goes on as the first argument says: warnings are errors, or stderr takes nothing.
TRAINS = """
import sys, time, warnings
import torch, stallscope
how, folder = sys.argv[1:]
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = {}
checkpointer = stallscope.Checkpointer(folder, model=model, optimizer=optimizer, state=state, every=1, signals=())
if how == "errors":
    warnings.simplefilter("error")
elif how == "closed":
    sys.stderr.close()
elif how == "none":
    sys.stderr = None
for step in range(6):
    if step == 2:
        state["unsaved"] = lambda: None
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    while not checkpointer._saver.ready():
        # A save that is due is passed over where memory for it is not there yet.
        time.sleep(0.001)
    checkpointer.step()
checkpointer.close()
for _ in range(2):
    list(stallscope.DataLoader(range(9), batch_size=4, cache="1MiB"))
print("ended")
"""


@pytest.mark.parametrize("how", ["errors", "full", "closed", "none"])
def test_what_we_have_to_tell_ends_no_training(tmp_path, how):
    command = [sys.executable, "-c", TRAINS, how, tmp_path / "saved"]
    env = environment(None, PYTHONPATH=str(PACKAGE), STALLSCOPE_RUNTIME_DIR=str(tmp_path / "run"))
    err = open("/dev/full", "wb") if how == "full" else subprocess.PIPE
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=err, text=True)
    # Python itself says by 120 that stderr did not take all that was written.
    assert done.returncode in ((0, 120) if how == "full" else (0,)) and done.stdout == "ended\n", done.stderr
    if how == "errors":
        assert "stallscope: No checkpoint of step" in done.stderr and "goes on without its cache" in done.stderr


def test_a_restore_that_warns_sets_all_where_warnings_are_errors(tmp_path):
    one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    with stallscope.Checkpointer(tmp_path, model=one, other=other, signals=()) as checkpointer:
        checkpointer.save(wait=True)
    fresh = torch.nn.Linear(2, 1)
    with stallscope.Checkpointer(tmp_path, model=fresh, signals=()) as checkpointer, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpointer.restore().step == 0
    assert torch.equal(fresh.weight, one.weight)


def test_a_signal_is_heard_where_no_thread_can_be_started(tmp_path, monkeypatch):
    class NoThread:
        def __init__(self, *ignored):
            self.daemon = False

        def start(self):
            raise RuntimeError("can't start new thread")

        def cancel(self):
            pass

    heard = []
    before = signals.signal.signal(signals.signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        monkeypatch.setattr(signals.threading, "Timer", NoThread)
        with stallscope.Checkpointer(tmp_path / "saved", model=torch.nn.Linear(2, 1), signals=("SIGUSR1",)) as checkpointer:
            os.kill(os.getpid(), signals.signal.SIGUSR1)
            assert not heard
            checkpointer.step()
        assert heard == [signals.signal.SIGUSR1] and (tmp_path / "saved" / "step-000000001").exists()
    finally:
        signals.signal.signal(signals.signal.SIGUSR1, before)
