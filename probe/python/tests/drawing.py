"""Draws from a loader's sampler as the hook of torch's iterators has it watched."""

import torch
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path
from torch.utils import data

from stallscope._hooks import order

ITEMS = data.TensorDataset(torch.arange(20))


class Iterator:
    """As far as an order is concerned."""

    def __init__(self, loader):
        order.begin(self, loader)
        self.indices = iter(loader.batch_sampler)


def draw(iterator):
    """As the hook of torch's iterators does."""
    watched = order.watch(iterator)
    try:
        return next(iterator.indices)
    except StopIteration:
        if watched is not None:
            watched.order.was_watched = watched.ended = True
        raise
    finally:
        if watched is not None:
            watched.over()
