"""The state dicts of torch's distributed checkpoints are taken and given back."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
dcp = pytest.importorskip("torch.distributed.checkpoint.state_dict", reason="SKIPPED: this torch has no such state dicts")

from stallscope import Checkpointer, CheckpointError  # noqa: E402


class App:
    """A job as the tutorials of torch.distributed.checkpoint have it."""

    def __init__(self, width=8):
        torch.manual_seed(3)
        layers = [torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1)]
        self.model = torch.nn.Sequential(*layers)
        groups = [{"params": self.model[0].parameters(), "lr": 0.1}, {"params": self.model[3].parameters()}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)

    def state_dict(self):
        model, optimizer = dcp.get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        dcp.set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )

    def train(self, steps):
        """The loss of each step."""
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.model(torch.rand(6, 4)).square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses


def test_a_job_goes_on_from_its_distributed_state_dicts(tmp_path):
    app = App()
    with Checkpointer(tmp_path, app=app) as checkpointer:
        app.train(7)
        checkpointer.step()
        checkpointer.save(wait=True)
        on = app.train(5)
    again = App()
    again.train(2)
    with Checkpointer(tmp_path, app=again) as checkpointer:
        assert checkpointer.restore().step == 1
        assert again.train(5) == on
    names = [name for name, _, _ in _tensors(tmp_path)]
    assert "app/model/0.weight" in names and "app/optimizer/state/0.weight/exp_avg" in names


def _tensors(folder):
    from stallscope.checkpoint import reading

    return reading.named(str(folder), "1").tensors(0)


def test_another_model_is_refused_and_says_why(tmp_path):
    with Checkpointer(tmp_path, app=App()) as checkpointer:
        checkpointer.save(wait=True)
    with Checkpointer(tmp_path, app=App(width=9)) as checkpointer:
        with pytest.raises(CheckpointError, match="app: App does not take the state from the checkpoint: .*size mismatch"):
            checkpointer.restore()
