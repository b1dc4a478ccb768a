"""A loader that draws the order itself is resumed as one of torch's is: looks are no epochs, and what no resume can go on with is named."""

import warnings

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path
from unwarned import unwarned

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402
from stallscope import Checkpointer  # noqa: E402

EPOCHS, BATCHES, BATCH = 2, 12, 4


class Numbers(torch.utils.data.Dataset):
    """One whose bytes can be kept, too."""

    def __len__(self):
        return BATCHES * BATCH

    def fetch(self, index):
        return index.to_bytes(4, "little") * 250

    def decode(self, data):
        return torch.tensor([float(int.from_bytes(data[:4], "little")), torch.rand(()).item()])

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


def made(sampling, **more):
    if sampling == "reuse":
        more.update(cache="20KB", sampling_options={"uses": 2, "cache_share": 0.9})
    elif sampling == "plain":
        more.update(shuffle=True)
    return stallscope.DataLoader(Numbers(), batch_size=BATCH, sampling=sampling, **more)


def look(loader):
    _, ids, _ = next(iter(loader.weighted()))
    loader.update(ids, ids % 5 + 0.1)


def train(folder, loader, looks=(), stop=None, seed=1):
    """What was trained with, a row a step, up to step `stop` of the job. `looks`: when the loader is looked at, and
    whether the script draws before each epoch."""
    torch.manual_seed(seed)
    if "first" in looks:
        look(loader)
    with Checkpointer(folder, loader=loader, signals=(), every=10**6) as checkpointer:
        start = checkpointer.restore()
        if "restored" in looks and start:
            look(loader)
        step, got = start.step if start else 0, []
        for epoch in range(start.epoch if start else 0, EPOCHS):
            if "draws" in looks:
                # As a size of pictures, once an epoch.
                torch.rand(1)
            for batch, ids, weights in loader.weighted():
                got.append([epoch, batch.tolist(), weights.tolist(), torch.rand(2).tolist()])
                loader.update(ids, ids % 7 + 0.1)
                checkpointer.step()
                step += 1
                if step == stop:
                    checkpointer.save(wait=True)
                    return got
            if "between" in looks:
                look(loader)
    return [*got, torch.rand(1).item()]


SAMPLINGS = ["plain", "importance", "reuse", "iis", "shade"]


@pytest.mark.parametrize("looks", [[], ["first"], ["between"], ["draws"]], ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_it_goes_on_as_if_it_had_never_stopped_and_a_look_is_no_epoch(tmp_path, sampling, looks):
    whole = train(tmp_path / "whole", made(sampling), looks)
    for stop in (3, BATCHES, BATCHES + 2):
        folder = tmp_path / str(stop)
        with unwarned():
            got = train(folder, made(sampling), looks, stop) + train(folder, made(sampling), looks, seed=2)
        assert got == whole, stop


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_look_at_what_follows_a_restore_uses_nothing_up(tmp_path, sampling):
    whole = train(tmp_path / "whole", made(sampling))
    got = train(tmp_path / "cut", made(sampling), stop=BATCHES + 2)
    with pytest.warns(RuntimeWarning, match="was left before a step, and counts as a look"):
        got += train(tmp_path / "cut", made(sampling), ["restored"], seed=2)
    assert got == whole


def warnings_of(folder, loader, rows):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Checkpointer(folder, loader=loader, signals=(), every=10**6) as checkpointer:
            for _ in rows:
                checkpointer.step()
                checkpointer.save(wait=True)
    return [str(one.message) for one in caught if "the last" in str(one.message) or "iteration" in str(one.message) or "passes" in str(one.message)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_loader_that_is_not_iterated_is_named(tmp_path, sampling):
    (warning,) = warnings_of(tmp_path, made(sampling), range(12))
    assert "the last 10 steps had no batch of the loader that was given" in warning


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_two_passes_over_one_loader_are_named(tmp_path, sampling):
    loader = made(sampling)
    (warning,) = warnings_of(tmp_path, loader, zip(loader.weighted(), loader.weighted()))
    assert "each step is trained with batches of several passes over one loader" in warning


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_draws_that_a_look_takes_from_the_epoch_under_way_are_named(tmp_path, sampling):
    loader = made(sampling)

    def rows():
        for at, row in enumerate(loader.weighted()):
            if at == 3:
                look(loader)
            yield row

    caught = warnings_of(tmp_path, loader, rows())
    assert [one.startswith("stallscope: another iteration of the loader began within the epoch that trains") for one in caught] == [True] * (
        sampling != "plain"
    )
