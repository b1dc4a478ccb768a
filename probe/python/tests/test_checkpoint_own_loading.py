"""Modules with loading code of their own take names and shapes from a checkpoint that they do not have as a job starts."""

import copy

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import Checkpointer, CheckpointError  # noqa: E402


class Bank(torch.nn.Module):
    """What it has seen, which grows."""

    def __init__(self, most=5):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(0, 3))
        self.most = most

    def forward(self, rows):
        self.seen = torch.cat([self.seen, rows.detach()])
        return self.layer(rows) + self.seen.mean()

    def _load_from_state_dict(self, state, prefix, *more):
        if len(state[prefix + "seen"]) > self.most:
            raise ValueError("too much was seen")
        self.seen = torch.zeros_like(state[prefix + "seen"])
        super()._load_from_state_dict(state, prefix, *more)


class List(torch.nn.Module):
    """Has names that it does not begin with, as torchmetrics' lists have."""

    def __init__(self):
        super().__init__()
        self.values = []

    def forward(self, rows):
        self.values.append(rows.sum())
        return rows

    def state_dict(self, *args, destination=None, prefix="", **more):
        state = super().state_dict(*args, destination=destination, prefix=prefix, **more)
        state[prefix + "values"] = list(self.values)
        return state

    def _load_from_state_dict(self, state, prefix, *more):
        self.values = state.pop(prefix + "values")
        super()._load_from_state_dict(state, prefix, *more)


def fake_quantised():
    """Scales of one element until the first batch, and of one for each channel from then on."""
    quantization = pytest.importorskip("torch.ao.quantization")
    layer = torch.nn.Linear(3, 2)
    layer.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    return quantization.prepare_qat(torch.nn.Sequential(layer).train())


MODELS = {
    "grows": lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), Bank()),
    "lists": lambda: torch.nn.Sequential(List(), torch.nn.Linear(3, 2)),
    "fake-quantised": fake_quantised,
}


def trained(model, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 3), step + 1.0)).square().sum().backward()
        optimizer.step()
    return optimizer


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("model", MODELS)
def test_they_are_restored_as_torch_restores_them(tmp_path, model):
    saved = MODELS[model]()
    optimizer = trained(saved, 2)
    with Checkpointer(tmp_path, model=saved, optimizer=optimizer) as checkpointer:
        checkpointer.save(wait=True)
    here, by_torch = MODELS[model](), MODELS[model]()
    by_torch.load_state_dict(copy.deepcopy(saved.state_dict()))
    with Checkpointer(tmp_path, model=here, optimizer=trained(here, 0)) as checkpointer:
        assert checkpointer.restore() is not None
    state, expected = here.state_dict(), by_torch.state_dict()
    assert list(state) == list(expected) and repr(state) == repr(expected)
    rows = torch.ones(2, 3)
    assert torch.equal(here(rows), by_torch(rows))


def test_what_they_refuse_leaves_everything_as_it_was(tmp_path):
    saved = Bank()
    with Checkpointer(tmp_path, model=saved, optimizer=trained(saved, 2)) as checkpointer:
        checkpointer.save(wait=True)
    here = Bank(most=3)
    optimizer = trained(here, 1)
    before = repr([here.state_dict(), optimizer.state_dict()])
    with Checkpointer(tmp_path, optimizer=optimizer, model=here) as checkpointer:
        with pytest.raises(CheckpointError, match="model: Bank does not take the state from the checkpoint: too much was seen"):
            checkpointer.restore()
    assert repr([here.state_dict(), optimizer.state_dict()]) == before


def test_the_layers_around_them_have_to_fit_all_the_same(tmp_path):
    with Checkpointer(tmp_path, model=torch.nn.Sequential(torch.nn.Linear(3, 3), Bank())) as checkpointer:
        checkpointer.save(wait=True)
    other = torch.nn.Sequential(torch.nn.Linear(4, 3), Bank())
    with pytest.raises(CheckpointError, match=r"model/0.weight is \[3, 3\] in step-000000000 and \[3, 4\] here"):
        Checkpointer(tmp_path, model=other)
    (tmp_path / "latest").unlink()
    with Checkpointer(tmp_path, model=other) as checkpointer:
        with pytest.raises(CheckpointError, match=r"model: 0.weight is \[3, 3\] in the checkpoint and \[3, 4\] here"):
            checkpointer.restore()
