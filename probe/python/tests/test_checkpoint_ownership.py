"""A restore writes into no tensor that somebody beside the optimiser has, and puts tensors wherever the checkpoint has some. Beside torch's load."""

import collections
import copy
import io

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import Checkpointer  # noqa: E402
from stallscope.checkpoint.tree import Reader, Writer  # noqa: E402
from stallscope.checkpoint.unread import Unread  # noqa: E402


def restored(folder, made, trained):
    """(by torch, by us): the objects that `made()` gives, restored each to what `trained(objects)` made of others."""
    saved = made()
    trained(saved)
    kept = io.BytesIO()
    torch.save({name: one.state_dict() for name, one in saved.items()}, kept)
    with Checkpointer(folder, signals=(), **saved) as saver:
        saver.save(wait=True)
    by_torch, here = made(), made()
    kept.seek(0)
    for name, state in torch.load(kept).items():
        by_torch[name].load_state_dict(state)
    with Checkpointer(folder, signals=(), **here) as saver:
        saver.restore()
    return by_torch, here


def sgd(model, **state):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight].update(state)
    return optimizer


def test_a_buffer_that_an_optimisers_state_began_as_is_the_modules(tmp_path):
    def made():
        model = torch.nn.BatchNorm1d(3)
        return {"model": model, "optimizer": sgd(model, best=model.running_mean)}

    def trained(saved):
        saved["optimizer"].state[saved["model"].weight]["best"] = torch.full((3,), 7.0)
        saved["model"].running_mean.fill_(3)

    for one in restored(tmp_path, made, trained):
        assert one["model"].running_mean.tolist() == [3] * 3
        assert one["optimizer"].state[one["model"].weight]["best"].tolist() == [7] * 3


@pytest.mark.parametrize("view", [False, True])
def test_optimisers_that_began_with_one_tensor_have_each_its_own(tmp_path, view):
    def made():
        model = torch.nn.Linear(1, 1, bias=False)
        first = torch.zeros(1, 1)
        return {"model": model, "first": sgd(model, x=first), "second": sgd(model, x=first.view(1, 1) if view else first)}

    def trained(saved):
        for value, name in enumerate(("first", "second"), 1):
            saved[name].state[saved["model"].weight]["x"] = torch.full((1, 1), float(value))

    for one in restored(tmp_path, made, trained):
        assert [one[name].state[one["model"].weight]["x"].item() for name in ("first", "second")] == [1, 2]


def trained_steps(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).square().mean().backward()
        optimizer.step()


KEPT = {
    "its state_dict()": lambda optimizer: optimizer.state_dict()["state"][0],
    "its state": lambda optimizer: optimizer.state,
    "a dict of it": lambda optimizer: next(iter(optimizer.state.values())),
    "a tensor of it": lambda optimizer: next(iter(optimizer.state.values()))["exp_avg"],
    "a view of a tensor": lambda optimizer: next(iter(optimizer.state.values()))["exp_avg"][:1],
    "an array of a tensor": lambda optimizer: next(iter(optimizer.state.values()))["exp_avg"].numpy(),
    "a storage": lambda optimizer: next(iter(optimizer.state.values()))["exp_avg"].untyped_storage(),
    "a graph": lambda optimizer: (torch.ones(1, 2, requires_grad=True) * next(iter(optimizer.state.values()))["exp_avg"]).sum(),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_a_script_kept_of_a_state_stays_what_it_was(tmp_path, what):
    if not hasattr(torch._C, "_storage_Use_Count") and what not in ("its state_dict()", "its state", "a dict of it", "a tensor of it"):
        pytest.skip("SKIPPED: this torch counts no uses of a storage")
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trained_steps(model, optimizer)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, signals=()) as saver:
        saver.save(wait=True)
        trained_steps(model, optimizer)
        kept = KEPT[what](optimizer)
        before = None if what == "a graph" else copy.deepcopy(list(kept.values()) if isinstance(kept, dict) else kept)
        now = next(iter(optimizer.state.values()))["exp_avg"].clone()
        saver.restore()
    assert not torch.equal(next(iter(optimizer.state.values()))["exp_avg"], now)
    if what == "a graph":
        # Its gradient is what was multiplied with.
        leaf = kept.grad_fn.next_functions[0][0].next_functions[0][0].variable
        kept.backward()
        assert torch.equal(leaf.grad, now)
    else:
        assert repr(list(kept.values()) if isinstance(kept, dict) else kept) == repr(before)


def test_a_look_at_another_checkpoint_and_back_trains_on_as_with_torch(tmp_path):
    def looked(by_torch):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        trained_steps(model, optimizer)
        kept = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], kept)
        with Checkpointer(tmp_path / str(by_torch), model=model, optimizer=optimizer, signals=()) as saver:
            saver.save(wait=True)
            trained_steps(model, optimizer)
            drawn, weights, moments = torch.get_rng_state(), copy.deepcopy(model.state_dict()), optimizer.state_dict()
            if by_torch:
                kept.seek(0)
                for one, state in zip((model, optimizer), torch.load(kept)):
                    one.load_state_dict(state)
            else:
                saver.restore()
            model.load_state_dict(weights)
            optimizer.load_state_dict(moments)
            torch.set_rng_state(drawn)
            trained_steps(model, optimizer)
        return model.weight

    assert torch.equal(looked(False), looked(True))


class Slow(torch.optim.SGD):
    """Has a copy of its module's state, as averages of weights have."""

    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.1)
        slow = model.state_dict()
        for key, value in slow.items():
            slow[key] = value.clone()
        self.state["slow"] = slow
        self.state["more"] = {"pairs": {0: torch.zeros(2)}, "ordered": collections.OrderedDict(a=[torch.zeros(3)], b=(torch.zeros(1),))}


def test_tensors_in_any_dict_of_a_state_are_restored_and_saved_again(tmp_path):
    def made():
        model = torch.nn.Linear(2, 1)
        return {"model": model, "optimizer": Slow(model)}

    def trained(saved):
        saved["optimizer"].state["slow"]["weight"].fill_(9)
        saved["optimizer"].state["more"]["ordered"]["a"][0].fill_(8)

    _, here = restored(tmp_path, made, trained)
    for again in (here, made()):
        with Checkpointer(tmp_path, signals=(), **again) as saver:
            saver.restore()
            state = again["optimizer"].state
            assert type(state["slow"]) is collections.OrderedDict and state["slow"]._metadata[""]["version"] == 1
            assert {type(one) for one in state["slow"].values()} == {torch.Tensor}
            assert type(state["more"]["ordered"]["a"][0]) is type(state["more"]["ordered"]["b"][0]) is type(state["more"]["pairs"][0]) is torch.Tensor
            assert state["slow"]["weight"].tolist() == [[9, 9]] and state["more"]["ordered"]["a"][0].tolist() == [8] * 3
            saver.save(wait=True)


class Kept:
    """A place that no restore looks into."""

    def __init__(self, tensor):
        self.tensor = tensor


class Keeping(torch.optim.SGD):
    def __setstate__(self, state):
        super().__setstate__(state)
        self.kept = [Kept(one["momentum_buffer"]) for one in self.state.values()]


def test_what_a_script_keeps_of_a_restore_can_be_saved(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = Keeping(model.parameters(), lr=0.1, momentum=0.9)
    trained_steps(model, optimizer)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, signals=()) as saver:
        saver.save(wait=True)
        saver.restore()
        one = optimizer.kept[0].tensor
        assert isinstance(one, Unread)
        writer = Writer()
        encoded = writer.encode({"kept": one}, "state")
        assert type(writer.tensors["state/kept"]) is torch.Tensor
        assert torch.equal(Reader(writer.tensors, False).decode(encoded)["kept"], optimizer.state[model.weight]["momentum_buffer"])
