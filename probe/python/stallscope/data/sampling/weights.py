"""Batches with the ids of their samples and what each sample's loss is to be multiplied with."""

import torch


class Weighted:
    """Iterates a loader: (batch, ids, weights), in the order of the samples in the batch. Its position, for which Lightning
    asks, is the loader's."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)

    def __iter__(self):
        handing = self.loader._handing()
        for batch in handing:
            index = handing.current.index
            uses = index if isinstance(index, (list, tuple)) else [index]
            yield batch, _ids(uses), torch.tensor([getattr(use, "weight", 1.0) for use in uses], dtype=torch.float32)


def _ids(uses):
    try:
        return torch.tensor([int(use) for use in uses], dtype=torch.int64)
    except (TypeError, ValueError):
        raise ValueError(f"weighted() needs samples whose indices are numbers, not {uses[0]!r}") from None


class PlannedSubset:
    """The pool's part of a data set, as the draws tell it of their plans: their ids are those of a subset, its are not."""

    def __init__(self, space, id_of, curve=None):
        self.space = space
        self.id_of = id_of
        self.curve = curve

    def planned(self, next_uses):
        of_space = [(self.id_of(index), next_at) for index, next_at in next_uses]
        if self.curve is not None:
            self.curve.ghost.planned(of_space if self.curve.of_space else next_uses)
        self.space.planned(of_space)

    def scored(self, scores):
        of_space = [(self.id_of(index), score) for index, score in scores]
        if self.curve is not None:
            self.curve.ghost.scored(of_space if self.curve.of_space else scores)
        self.space.scored(of_space)

    def epoch(self):
        self.space.epoch()
