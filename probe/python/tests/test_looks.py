"""A change of the data set by its script shows, before a worker is added that would have another one than the others."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope._hooks import outline  # noqa: E402


class Transform:
    def __init__(self):
        self.size = 32


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.epoch, self.transform, self.options = 0, Transform(), {"flip": 0.5}
        self.names, self.labels = [f"{number}.jpg" for number in range(1000)], torch.zeros(1000)
        self.itself = self

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index


CHANGES = {
    "a number": lambda images: setattr(images, "epoch", 1),
    "a transform's": lambda images: setattr(images.transform, "size", 64),
    "another transform": lambda images: setattr(images, "transform", Transform()),
    "an option": lambda images: images.options.update(flip=0.1),
    "a name more": lambda images: images.names.append("more.jpg"),
    "labels written to": lambda images: images.labels.fill_(1),
    "a new attribute": lambda images: setattr(images, "fold", 3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_script_changes_shows(change):
    images = Images()
    around = torch.utils.data.Subset(images, range(10))
    before = outline.of(around)
    assert outline.of(around) == before
    CHANGES[change](images)
    assert outline.of(around) != before
