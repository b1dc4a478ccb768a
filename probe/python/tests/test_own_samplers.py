"""Samplers of a script's own, with generators or counters of their own, go on in the order in which they would have gone on."""

import random

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
numpy = pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")

import stallscope  # noqa: E402

SAMPLES, BATCH = 30, 5


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index


class Own:
    """A sampler by some source of its order."""

    def __init__(self, source):
        self.source, self.seed, self.began = source, 5, 0
        if source == "torch":
            self.drawn_from = torch.Generator().manual_seed(5)
        elif source == "numpy":
            self.rng = numpy.random.default_rng(5)
        elif source == "numpy's older":
            self.rng = numpy.random.RandomState(5)
        elif source == "python":
            self.rng = random.Random(5)

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        if self.source == "torch":
            order = torch.randperm(SAMPLES, generator=self.drawn_from).tolist()
        elif self.source.startswith("numpy"):
            order = self.rng.permutation(SAMPLES).tolist()
        elif self.source == "python":
            order = self.rng.sample(range(SAMPLES), SAMPLES)
        else:
            order = random.Random(self.seed + self.began).sample(range(SAMPLES), SAMPLES)
        self.began += 1
        yield from order


class OwnBatches(Own):
    def __len__(self):
        return SAMPLES // BATCH

    def __iter__(self):
        order = list(super().__iter__())
        yield from (order[at : at + BATCH] for at in range(0, SAMPLES, BATCH))


SOURCES = ["torch", "numpy", "numpy's older", "python", "a counter"]


def made(source, batches):
    if batches:
        return stallscope.DataLoader(Samples(), batch_sampler=OwnBatches(source))
    return stallscope.DataLoader(Samples(), batch_size=BATCH, sampler=Own(source))


@pytest.mark.parametrize("batches", [False, True], ids=["sampler", "batch sampler"])
@pytest.mark.parametrize("source", SOURCES)
def test_it_goes_on_as_it_would_have(source, batches):
    loader = made(source, batches)
    whole = [[batch.tolist() for batch in loader] for _ in range(3)]
    # Between the second epoch and the third, and within the second.
    loader = made(source, batches)
    for _ in range(2):
        list(loader)
    again = made(source, batches)
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == whole[2]
    loader = made(source, batches)
    list(loader)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    again = made(source, batches)
    again.load_state_dict(loader.state_dict())
    assert [[batch.tolist() for batch in again] for _ in range(2)] == [whole[1][2:], whole[2]]


def test_a_setting_is_the_scripts():
    loader = made("a counter", False)
    list(loader)
    again = made("a counter", False)
    again.sampler.seed = 8
    again.load_state_dict(loader.state_dict())
    assert (again.sampler.seed, again.sampler.began) == (8, 1)
