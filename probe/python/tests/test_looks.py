"""Passes over a loader that train nothing leave the position and the count of epochs to the pass that does."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402
from stallscope import Checkpointer  # noqa: E402

EPOCHS = 3


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index


def loader_of(kind, workers):
    generator = torch.Generator().manual_seed(5)
    return kind(Numbers(), batch_size=4, shuffle=True, generator=generator, num_workers=workers)


def train(checkpointer, loader, look, stop=None):
    """Ids by batch, from where `restore()` says until `stop` batches; `look(place)`: what else is done with the loader."""
    start = checkpointer.restore()
    got = []
    for epoch in range(start.epoch if start else 0, EPOCHS):
        look("epoch")
        for batch in loader:
            got.append(batch.tolist())
            look("batch")
            checkpointer.step()
            if len(got) == stop:
                checkpointer.save(wait=True)
                return got, start
    return got, start


@pytest.fixture(params=["torch, 0 workers", "stallscope, 0 workers", "torch, 2 workers"])
def made(request):
    kind = torch.utils.data.DataLoader if "torch" in request.param else stallscope.DataLoader
    return lambda: loader_of(kind, 2 if "2" in request.param else 0)


@pytest.mark.parametrize("stop", [2, 5, 7])
def test_a_look_in_mid_epoch_leaves_the_position_to_the_pass_that_trains(made, tmp_path, stop):
    def looking(loader):
        # At one batch of each epoch, whether or not the job was cut off before.
        def look(place):
            if place == "epoch":
                looking.batches = 0
            looking.batches += place == "batch"
            if looking.batches == 2 and place == "batch":
                next(iter(loader))

        return look

    whole_loader = made()
    with Checkpointer(tmp_path / "whole", loader=whole_loader, every=10**6) as checkpointer:
        whole, _ = train(checkpointer, whole_loader, looking(whole_loader))
    assert len(whole) == 5 * EPOCHS
    first = made()
    with Checkpointer(tmp_path / "cut", loader=first, every=10**6) as checkpointer:
        before, _ = train(checkpointer, first, looking(first), stop)
    second = made()
    with Checkpointer(tmp_path / "cut", loader=second, every=10**6) as checkpointer:
        after, start = train(checkpointer, second, lambda place: None)
    assert before == whole[:stop] and start.epoch == (stop - 1) // 5
    # The epoch that was under way goes on where it was.
    rest = 5 - (stop - 1) % 5 - 1
    assert before + after[:rest] == whole[: stop + rest]
    assert len(before) + len(after) == len(whole)


def test_a_pass_that_trains_nothing_is_no_epoch(made, tmp_path):
    loader = made()
    with Checkpointer(tmp_path, loader=loader, every=10**6) as checkpointer:
        train(checkpointer, loader, lambda place: place == "epoch" and list(loader))
        checkpointer.save(wait=True)
    with Checkpointer(tmp_path, loader=made()) as checkpointer:
        assert checkpointer.restore().epoch == EPOCHS


def test_a_look_after_restore_keeps_the_position(made, tmp_path):
    first, whole = made(), made()
    expected = [batch.tolist() for _ in range(EPOCHS) for batch in whole]
    with Checkpointer(tmp_path, loader=first, every=10**6) as checkpointer:
        before, _ = train(checkpointer, first, lambda place: None, stop=7)
    second = made()
    with Checkpointer(tmp_path, loader=second, every=10**6) as checkpointer:
        start = checkpointer.restore()
        shape = len(next(iter(second)))
        after = []
        for _ in range(start.epoch, EPOCHS):
            for batch in second:
                after.append(batch.tolist())
                checkpointer.step()
    assert shape == 4 and start.epoch == 1
    assert before + after == expected


def test_who_saves_by_hand_alone_counts_every_pass(made, tmp_path):
    loader = made()
    with Checkpointer(tmp_path, loader=loader, every=10**6) as checkpointer:
        for _ in range(2):
            list(loader)
            checkpointer.save(wait=True)
        third = iter(loader)
        got = [next(third).tolist() for _ in range(2)]
        checkpointer.save(wait=True)
        got += [batch.tolist() for batch in third]
    again = made()
    with Checkpointer(tmp_path, loader=again) as checkpointer:
        assert checkpointer.restore().epoch == 2
        assert [batch.tolist() for batch in again] == got[2:]
        assert len(list(again)) == 5
        checkpointer.save(wait=True)
    with Checkpointer(tmp_path, loader=made()) as checkpointer:
        assert checkpointer.restore().epoch == 4


def test_workers_that_stay_draw_no_seed_for_the_epoch_after_a_restore(tmp_path):
    def loader():
        return torch.utils.data.DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)

    def epochs(loader, number):
        return [[batch.tolist() for batch in loader] for _ in range(number)]

    torch.manual_seed(3)
    whole = epochs(loader(), EPOCHS)
    torch.manual_seed(3)
    first = loader()
    with Checkpointer(tmp_path, loader=first) as checkpointer:
        before = epochs(first, 1)
        checkpointer.save(wait=True)
    torch.manual_seed(99)
    second = loader()
    with Checkpointer(tmp_path, loader=second) as checkpointer:
        checkpointer.restore()
        assert before + epochs(second, EPOCHS - 1) == whole
