"""A sampler that draws as it is asked goes on in its order where other workers have another number of batches ahead, or a warning says that it does not."""

import random
import warnings

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
numpy = pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")

from stallscope import _random  # noqa: E402
from stallscope.data.resume.given import position  # noqa: E402

SAMPLES, BATCH, EPOCHS = 36, 3, 2
# Workers at the checkpoint and after it.
OTHERS = [(0, 2), (2, 0), (1, 2), (2, 1)]
# Within an epoch, and where its end is among what is ahead.
STOPS = (3, 10)


class Drawing:
    """Draws for each batch, from this generator."""

    def __init__(self, source):
        self.source = source
        if source == "its own":
            self.generator = torch.Generator().manual_seed(5)

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        draws = {
            "python": lambda: random.randrange(SAMPLES),
            "numpy": lambda: int(numpy.random.randint(SAMPLES)),
            "torch": lambda: int(torch.randint(SAMPLES, ())),
            "its own": lambda: int(torch.randint(SAMPLES, (), generator=self.generator)),
        }
        yield from (draws[self.source]() for _ in range(SAMPLES))
        # For the epoch that follows.
        draws[self.source]()


class Rounds:
    """Draws once more in mid-epoch."""

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        for _ in range(2):
            yield from torch.randperm(SAMPLES // 2).tolist()


def made(sampler, workers):
    _random.seed(7)
    return position(torch.utils.data.DataLoader(range(SAMPLES), batch_size=BATCH, sampler=sampler, num_workers=workers))


def trained(loader, draw, stop=None):
    got = []
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for batch in loader:
            draw(loader)
            got.append(batch.tolist())
            if len(got) == stop:
                return got, loader.state_dict(), _random.capture()
    return got, None, None


def resumed(sampler, stop, workers, then, draw):
    """What was trained with, before and after, and the warnings."""
    before, state, generators = trained(made(sampler(), workers), draw, stop)
    loader = made(sampler(), then)
    loader.load_state_dict(state)
    loader.go_on_with(generators)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after, *_ = trained(loader, draw)
    return before + after, [str(one.message) for one in caught]


@pytest.mark.parametrize("workers, then", OTHERS)
@pytest.mark.parametrize("source, draw", [
    *((source, lambda loader: None) for source in ("python", "numpy", "torch", "its own")),
    # Training draws elsewhere.
    ("python", lambda loader: torch.rand(3)),
    ("its own", lambda loader: torch.rand(3)),
], ids=["python", "numpy", "torch", "its own", "python beside torch", "its own beside torch"])  # fmt: skip
def test_the_order_goes_on_with_more_and_fewer_ahead(source, draw, workers, then):
    whole, *_ = trained(made(Drawing(source), workers), draw)
    for stop in STOPS:
        got, warned = resumed(lambda: Drawing(source), stop, workers, then, draw)
        assert (stop, got, warned) == (stop, whole, [])


@pytest.mark.parametrize("source, draw", [
    ("numpy", lambda loader: numpy.random.rand(3)),
    ("its own", lambda loader: torch.rand(3, generator=loader.sampler.generator)),
], ids=["numpy", "its own"])  # fmt: skip
def test_where_training_draws_there_too_more_ahead_is_warned_of(source, draw):
    """At the first batch, which no draw of training's is before."""
    got, warned = resumed(lambda: Drawing(source), 1, 0, 2, draw)
    assert len(got) == EPOCHS * SAMPLES // BATCH
    (warning,) = warned
    assert "asked for 5 batches of this epoch here and for 1 when the checkpoint was taken" in warning and "same num_workers" in warning


def test_what_was_ahead_and_is_drawn_otherwise_is_warned_of():
    draw = lambda loader: torch.rand(3)  # noqa: E731
    whole, *_ = trained(made(Rounds(), 2), draw)
    outcomes = [resumed(Rounds, stop, 2, 2, draw) for stop in (1, 4, 8)]
    # Before the draw, with it among what is ahead, and behind it.
    assert [got == whole for got, _ in outcomes] == [True, False, False]
    assert [len(warned) for _, warned in outcomes] == [0, 1, 1]
    assert "does not give the same first 8 batches" in outcomes[1][1][0]
