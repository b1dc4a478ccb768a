"""A checkpoint is of one moment, whatever the loop does while it is written."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import Checkpointer  # noqa: E402
from stallscope.checkpoint import reading  # noqa: E402
from stallscope.checkpoint.tree import Reader  # noqa: E402


def saved(folder, step, name):
    """The state of the object `name` in the checkpoint of a step."""
    part = reading.Part(reading.named(str(folder), str(step)), 0)
    return Reader(part.tensors(), False).decode(part.encoded["objects"][name])


def test_buffers_that_forward_changes_right_after_a_save_are_not_in_it(tmp_path):
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 6 * 6, 4)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    copies = {}
    with Checkpointer(tmp_path, model=model, every=10**9, keep=100) as checkpointer:
        for step in range(1, 9):
            optimizer.zero_grad()
            model(torch.rand(2, 3, 8, 8) * step).sum().backward()
            optimizer.step()
            copies[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            checkpointer.step()
            checkpointer.save()
            # The next forward pass, while this is being written: it changes what the batch norm has counted and averaged.
            model(torch.rand(2, 3, 8, 8) * 1e3)
            assert not torch.equal(model[1].running_mean, copies[step]["1.running_mean"])
    for step, copy in copies.items():
        state = saved(tmp_path, step, "model")
        assert list(state) == list(copy)
        assert all(torch.equal(state[name], tensor) for name, tensor in copy.items()), f"step {step}"


class Counters:
    """32 MB of which every element is the same number at any moment between two steps."""

    def __init__(self):
        self.tensors = [torch.zeros(1 << 20) for _ in range(8)]

    def state_dict(self):
        return {str(at): tensor for at, tensor in enumerate(self.tensors)}

    def load_state_dict(self, state):
        raise NotImplementedError("nobody loads here")


def test_a_loop_that_changes_everything_during_a_save_tears_none(tmp_path):
    counters = Counters()
    steps = []
    with Checkpointer(tmp_path, counters=counters, every=10**9, keep=100) as checkpointer:
        while len(steps) < 5:
            for tensor in counters.tensors:
                tensor.add_(1)
            checkpointer.step()
            # Not at every step: between two saves the loop goes on beside the one that is being written.
            if checkpointer._saver.ready():
                checkpointer.save()
                steps.append(int(counters.tensors[0][0]))
    for step in steps:
        state = saved(tmp_path, step, "counters")
        assert all((tensor == step).all() for tensor in state.values()), f"step {step} is of several moments"
