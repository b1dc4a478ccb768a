"""A Checkpointer that is made takes its job's state apart once, to refuse what cannot be saved: that changes nothing, and asks for nothing too early."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import Checkpointer, CheckpointError  # noqa: E402
from stallscope.data import DataLoader  # noqa: E402


class Drawing(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([float(index), torch.rand(()).item()])


def loops(folder, every, workers, given):
    """What a script draws that draws before its loop and between epochs too. `given`: how the Checkpointer gets the loader; None of none."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(3)
    loader = StatefulDataLoader(Drawing(), batch_size=4, shuffle=True, num_workers=workers)
    model = torch.nn.Linear(1, 1)
    saver = given and Checkpointer(folder, model=model, every=every, signals=(), **given(loader))
    drawn = [torch.rand(()).item()]
    for _ in range(3):
        drawn.append(torch.rand(()).item())
        for batch in loader:
            drawn += [batch.tolist(), torch.rand(()).item()]
            if saver:
                saver.step()
                saver._wait()
    if saver:
        saver.close()
    return drawn


GIVEN = {
    "alone": lambda loader: {"loader": loader},
    "with one of ours": lambda loader: {"loader": [DataLoader(range(8)), loader]},
    "as an object": lambda loader: {"train_loader": loader},
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("every, workers", [(1, 0), (1000, 0), (1, 1)])
def test_a_job_with_a_loader_of_torchdatas_draws_what_it_draws_without_us(tmp_path, every, workers, given):
    pytest.importorskip("torchdata.stateful_dataloader", reason="SKIPPED: no torchdata")
    assert loops(tmp_path, every, workers, GIVEN[given]) == loops(tmp_path, every, workers, None)


def test_a_loader_that_is_iterated_later_than_the_first_step_draws_then(tmp_path):
    pytest.importorskip("torchdata.stateful_dataloader", reason="SKIPPED: no torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(3)
    loader = StatefulDataLoader(Drawing(), batch_size=4, shuffle=True)
    with Checkpointer(tmp_path, model=torch.nn.Linear(1, 1), loader=loader, every=1000, signals=()) as saver:
        before = torch.get_rng_state()
        saver.step()
        assert torch.equal(torch.get_rng_state(), before)
        # Only a save needs its state.
        saver.save(wait=True)
        assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("where", ["list", "dict", "far below"])
def test_a_state_that_contains_itself_is_refused_by_name(tmp_path, where):
    inner = {"list": [1], "dict": {"a": 1}, "far below": {"a": [({"b": 1},)]}}[where]
    if where == "list":
        inner.append(inner)
    elif where == "dict":
        inner["self"] = inner
    else:
        inner["a"][0][0]["up"] = inner
    with pytest.raises(CheckpointError, match=r"^state/outer/.* is state/outer.* again: a state that contains itself"):
        Checkpointer(tmp_path, model=torch.nn.Linear(1, 1), state={"outer": inner}, signals=())


def test_what_stands_in_a_state_twice_does_not_contain_itself(tmp_path):
    twice = [1, {"a": 2}]
    state = {"one": twice, "other": [twice, twice]}
    with Checkpointer(tmp_path, state=state, signals=()) as saver:
        saver.save(wait=True)
        saver.restore()
    assert state == {"one": twice, "other": [twice, twice]}


def test_a_state_that_is_too_deep_is_refused_in_a_sentence(tmp_path):
    deep = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(CheckpointError, match="state/deep.* deep"):
        Checkpointer(tmp_path, state={"deep": deep}, signals=())
