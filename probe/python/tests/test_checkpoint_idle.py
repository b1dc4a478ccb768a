"""Where a script puts another optimiser in the place of the one that is saved, it hears of it; where the one that is saved steps, it does not."""

import warnings

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import Checkpointer  # noqa: E402


class Functional(torch.optim.Optimizer):
    """Its state is made anew at each step."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter]
            kept["mean"] = 0.9 * kept.get("mean", torch.zeros_like(parameter)) + parameter.grad
            parameter -= 0.1 * kept["mean"]


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.rand(3, 4)).sum().backward()
    optimizer.step()


def saved(folder, model, optimizer, steps, stepping):
    """The warnings of a job that saves each third step; `stepping(step)` gives the optimiser that steps."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Checkpointer(folder, model=model, optimizer=optimizer, every=10**6) as checkpointer:
            for step in range(steps):
                one = stepping(step)
                if one is not None:
                    train(model, one)
                checkpointer.step()
                if step % 3 == 2:
                    # One that is due while another is written would come later.
                    checkpointer.save(wait=True)
    return [str(one.message) for one in caught if "has not stepped" in str(one.message)]


def test_another_optimizer_in_its_place_is_named_once(tmp_path):
    model = torch.nn.Linear(4, 2)
    first, second = (torch.optim.AdamW(model.parameters()) for _ in range(2))
    (warning,) = saved(tmp_path, model, first, 40, lambda step: first if step < 9 else second)
    assert "optimizer has not stepped in the last " in warning and "Only the one that was given is saved" in warning


MAKERS = [
    *(lambda parameters, kind=kind: kind(parameters, lr=0.01) for kind in (torch.optim.Adam, torch.optim.Adagrad, torch.optim.LBFGS, torch.optim.SGD)),
    lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True, amsgrad=True),
    Functional,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_one_that_steps_is_not(tmp_path, make):
    model = torch.nn.Linear(4, 2)
    optimizer = make(model.parameters())
    if isinstance(optimizer, torch.optim.LBFGS):
        step = optimizer.step
        optimizer.step = lambda: step(lambda: model(torch.ones(3, 4)).square().sum())
    assert saved(tmp_path, model, optimizer, 30, lambda step: optimizer) == []


def test_nor_one_that_pauses_or_has_not_begun(tmp_path):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    assert saved(tmp_path / "pauses", model, optimizer, 30, lambda step: optimizer if step % 5 == 0 else None) == []
    unused, other = torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters())
    assert saved(tmp_path / "unused", model, unused, 30, lambda step: other) == []


def saved_beside(folder, given, steps, batches):
    """The warnings of a job that gave the Checkpointer the loader `given`, and trains with those that `batches` gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Checkpointer(folder, loader=given, every=10**6) as checkpointer:
            for step, _ in zip(range(steps), batches):
                checkpointer.step()
                if step % 3 == 2:
                    checkpointer.save(wait=True)
    return [str(one.message) for one in caught]


def numbers(shuffle=True):
    return torch.utils.data.DataLoader(torch.arange(20), batch_size=4, shuffle=shuffle)


@pytest.mark.parametrize("is_first_its_own", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_a_loader_that_is_made_anew_for_each_epoch_is_named_once(tmp_path, is_first_its_own, several):
    given = numbers()
    epochs = (batch for epoch in range(9) for batch in (given if is_first_its_own and epoch == 0 else numbers()))
    (warning,) = saved_beside(tmp_path, [given] if several else given, 30, epochs)
    assert f"the last {10 if is_first_its_own else 12} steps had no batch of the loader that was given" in warning


def test_one_that_is_used_is_not(tmp_path):
    given, other = numbers(), numbers()

    def one_for_many():
        for batch in given:
            yield from [batch] * 12

    def in_turns():
        for loader in [given, given, given, other, other, other]:
            yield from loader

    assert saved_beside(tmp_path / "a", given, 30, one_for_many()) == []
    assert saved_beside(tmp_path / "b", given, 12, (list(given) for _ in range(12))) == []
    assert saved_beside(tmp_path / "c", [given, other], 30, in_turns()) == []
