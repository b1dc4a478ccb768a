"""Loops over several loaders at once, and over one that is begun before it is asked, go on as if they had never stopped."""

import warnings

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path
from unwarned import unwarned

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402
from stallscope import Checkpointer  # noqa: E402

EPOCHS, BATCHES = 3, 5


class Numbers(torch.utils.data.Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return index


def several(lengths, workers=0, kind=torch.utils.data.DataLoader):
    """Shuffled loaders of so many batches of four, whose orders come from torch's own generator."""
    return [kind(Numbers(4 * batches), batch_size=4, shuffle=True, num_workers=workers) for batches in lengths]


def drawing_before_the_first(loader):
    """Begun, and asked only after something else was drawn, which a script that is taken up has done already."""
    is_new = loader.state_dict()["batches"] is None
    iterator = iter(loader)
    if is_new:
        torch.rand(3)
    yield from iterator


def train(folder, loaders, together, stop=None, seed=1):
    """What was trained with, a row a step, up to step `stop` of the job; and where it began."""
    torch.manual_seed(seed)
    with Checkpointer(folder, loader=loaders, signals=(), every=10**6) as checkpointer:
        start = checkpointer.restore()
        step, got = start.step if start else 0, []
        for _ in range(start.epoch if start else 0, EPOCHS):
            for batches in together(loaders):
                got.append([batch.tolist() for batch in batches])
                torch.rand(2)
                checkpointer.step()
                step += 1
                if step == stop:
                    checkpointer.save(wait=True)
                    return got
        return [*got, torch.rand(1).item()]


def zipped(loaders):
    return zip(*loaders)


def in_turns(loaders):
    for loader in loaders:
        yield from ([batch] for batch in drawing_before_the_first(loader))


def assert_goes_on(tmp_path, make, together, stops):
    """Cut off at each of `stops` one after the other, and without a word."""
    whole = train(tmp_path / "whole", make(), together)
    got = []
    with unwarned():
        for seed, stop in enumerate([*stops, None], 1):
            got += train(tmp_path / "cut", make(), together, stop, seed)
    assert got == whole


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, stallscope.DataLoader], ids=["torch", "stallscope"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stops", [[2], [5, 8]], ids=str)
def test_zipped_loaders_lose_no_epoch_and_keep_their_orders(tmp_path, kind, workers, stops):
    assert_goes_on(tmp_path, lambda: several([BATCHES, BATCHES], workers, kind), zipped, stops)


@pytest.mark.parametrize("lengths", [[BATCHES, 8], [9, 8, BATCHES]], ids=str)
def test_a_longer_loader_begins_its_next_epoch_with_the_shorter_one(tmp_path, lengths):
    assert_goes_on(tmp_path, lambda: several(lengths), zipped, [5, 8])


@pytest.mark.parametrize("stops", [[4], [5, 6]], ids=str)
def test_what_is_drawn_before_the_first_batch_is_asked_for_changes_no_order(tmp_path, stops):
    assert_goes_on(tmp_path, lambda: several([BATCHES]), in_turns, stops)


def test_an_epoch_whose_last_step_was_saved_counts_once(tmp_path):
    # By the second restore the epoch that was begun after the first one has to be known as the second.
    assert_goes_on(tmp_path, lambda: several([BATCHES]), zipped, [BATCHES, BATCHES + 2, 2 * BATCHES, 2 * BATCHES + 1])


def endless(loader):
    while True:
        yield from loader


@pytest.mark.parametrize("is_made_once", [True, False])
def test_that_a_loop_may_begin_an_endless_one_anew_is_named(tmp_path, is_made_once):
    def together(made):
        def rows(loaders):
            first, second = loaders
            return zip(first, made.setdefault("once", endless(second)) if is_made_once else endless(second))

        return rows

    whole = train(tmp_path / "whole", several([BATCHES, 8]), together({}))
    for stop in (BATCHES - 1, BATCHES):
        got = train(tmp_path / str(stop), several([BATCHES, 8]), together({}), stop)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got += train(tmp_path / str(stop), several([BATCHES, 8]), together({}), seed=2)
        named = [str(one.message) for one in caught]
        assert len(named) == (stop == BATCHES) and all("a loader goes on behind batch 5 of its pass" in one for one in named)
        assert got == whole or not is_made_once and stop == BATCHES


def warnings_of(folder, loader, rows):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Checkpointer(folder, loader=loader, signals=(), every=10**6) as checkpointer:
            for _ in rows:
                checkpointer.step()
                checkpointer.save(wait=True)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("is_listed", [False, True])
def test_two_passes_over_one_loader_are_named_once(tmp_path, is_listed):
    (loader,) = several([BATCHES])
    (warning,) = warnings_of(tmp_path, [loader] if is_listed else loader, (row for _ in range(2) for row in zip(loader, loader)))
    assert "each step is trained with batches of several passes over one loader, as in zip(loader, loader)" in warning


def test_a_look_beside_a_pass_is_no_second_one(tmp_path):
    (loader,) = several([BATCHES])
    looks = iter(loader)
    next(looks)

    def rows():
        for at, batch in enumerate(loader):
            if at == 3:
                next(looks)
            yield batch

    assert warnings_of(tmp_path, loader, rows()) == []
