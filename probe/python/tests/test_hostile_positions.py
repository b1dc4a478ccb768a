"""Positions of our own orders that no loader has saved, as a checkpoint from elsewhere may have them: they are refused, and nothing is planned."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402


def begun(sampling):
    loader = stallscope.DataLoader(range(40), batch_size=4, sampling=sampling)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    return loader.state_dict()


# Draws up to such a place were planned without end; of such an epoch's batches there were as many.
@pytest.mark.parametrize("sampling", ["importance", "iis", "shade"])
@pytest.mark.parametrize("name, value", [("handed", 1 << 60), ("handed", -1), ("end", 1 << 60), ("start", 1 << 60), ("chunk", 1 << 63), ("end", 12.5)])
def test_a_place_where_nothing_is_planned_is_refused(sampling, name, value):
    state = begun(sampling)
    state["sampling"][name] = value
    loader = stallscope.DataLoader(range(40), batch_size=4, sampling=sampling)
    with pytest.raises(ValueError, match="damaged"):
        loader.load_state_dict(state)


def test_all_of_them_at_once_are_refused():
    state = begun("importance")
    state["sampling"].update(handed=1 << 60, start=1 << 60, end=1 << 60)
    with pytest.raises(ValueError, match="damaged"):
        stallscope.DataLoader(range(40), batch_size=4, sampling="importance").load_state_dict(state)


@pytest.mark.parametrize("sampling", ["importance", "iis", "shade"])
def test_what_was_saved_is_taken_up(sampling):
    loader = stallscope.DataLoader(range(40), batch_size=4, sampling=sampling)
    for _ in range(2):
        state = loader.state_dict()
        stallscope.DataLoader(range(40), batch_size=4, sampling=sampling).load_state_dict(state)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        again = stallscope.DataLoader(range(40), batch_size=4, sampling=sampling)
        again.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in again] == [batch.tolist() for batch in batches]


def test_batches_of_no_sample_take_no_memory():
    loader = stallscope.DataLoader(range(40), batch_size=4, sampling="importance")
    loader.update(torch.tensor([1, 2]), torch.tensor([0.5, 0.25]))
    next(iter(loader))
    loader.update(torch.tensor([3]), torch.tensor([1.0]))
    state = loader.state_dict()
    again = stallscope.DataLoader(range(40), batch_size=4, sampling="importance")
    again.load_state_dict(state)
    again.update(torch.tensor([4]), torch.tensor([0.125]))
    loader.update(torch.tensor([4]), torch.tensor([0.125]))
    assert again.state_dict()["sampling"]["told"] == loader.state_dict()["sampling"]["told"]
    lengths, ids, losses = state["sampling"]["told"]
    state["sampling"]["told"] = [lengths + bytes(8 * 100_000), ids, losses]
    again.load_state_dict(state)
    assert not again._order.scores.pending
    state["sampling"]["told"] = [b"\xff" * 8, ids, losses]
    with pytest.raises(ValueError, match="damaged"):
        again.load_state_dict(state)
