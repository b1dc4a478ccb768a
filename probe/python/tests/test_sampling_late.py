"""A loader with a sampling of its own knows which rank it is of, or says that it does not."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index


def test_a_loader_made_before_the_process_group_is_refused(monkeypatch):
    late = stallscope.DataLoader(Numbers(), batch_size=4, sampling="importance")
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    with pytest.raises(RuntimeError, match="made for 1 rank and the process group has 2.* make it after init_process_group"):
        next(iter(late.weighted()))
