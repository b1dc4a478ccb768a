"""A cache gives what the workers' own data set gives, whatever the script's `worker_init_fn` makes of it."""

import time

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402

SAMPLES = 64
SHIFT = 0


class Shifted(torch.utils.data.Dataset):
    """Reads at a place that may be moved, in a file that is opened at the first use."""

    def __init__(self, path):
        self.path = path
        self.place = 0
        self.size = 1
        self.file = self.worker = None

    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        if self.file is None:
            self.file = open(self.path, "rb")
        self.file.seek(index + self.place + SHIFT)
        return self.file.read(1) * 100

    def decode(self, data):
        return data[0] * self.size

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


class Augmented(Shifted):
    def decode(self, data):
        # Long enough to be kept decoded.
        time.sleep(0.001)
        return [data[0] * self.size]

    def augment(self, decoded):
        return -decoded[0]

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))


def moves(_):
    torch.utils.data.get_worker_info().dataset.place = 100


def shifts(_):
    global SHIFT
    SHIFT = 50


def enlarges(_):
    torch.utils.data.get_worker_info().dataset.size = 3


def opens(number):
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.file, dataset.worker = open(dataset.path, "rb"), number


def opens_and_moves(number):
    opens(number)
    moves(number)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    return tmp_path / "bytes"


def samples(loader):
    return [one for _ in range(2) for batch in loader for one in batch.tolist()]


def loaders(dataset, init, **more):
    settings = {"batch_size": 8, "num_workers": 2, "worker_init_fn": init}
    return torch.utils.data.DataLoader(dataset, **settings), stallscope.DataLoader(dataset, cache="1MiB", **settings, **more)


@pytest.mark.parametrize("fetchers", [0, 1])
@pytest.mark.parametrize("kind", [Shifted, Augmented])
@pytest.mark.parametrize("init", [moves, shifts, enlarges, opens_and_moves])
def test_workers_get_what_their_init_function_makes_of_the_data_set(path, init, kind, fetchers):
    dataset = kind(path)
    # Which keeps all that is there without such a function.
    samples(loaders(dataset, None)[1])
    by_torch, ours = loaders(dataset, init, fetchers=fetchers)
    assert samples(ours) == samples(by_torch)
    # What the workers read is not kept for others.
    by_torch, ours = loaders(dataset, None)
    assert samples(ours) == samples(by_torch)


@pytest.mark.parametrize("kind", [Shifted, Augmented])
@pytest.mark.parametrize("init", [lambda number: torch.manual_seed(number), opens])
def test_one_that_leaves_the_samples_as_they_are_costs_no_hits(path, init, kind):
    by_torch, ours = loaders(kind(path), init)
    assert samples(ours) == samples(by_torch)
    assert ours.cache_figures()["hits"] == SAMPLES
