"""Of data sets of files a loader with a cache gives what torch's gives, whatever they ask of a file, and whichever file it is by then."""

import os
import warnings

import pytest
from test_as_torch import SAMPLES, numpy, own_pool, torch, values  # noqa: F401, a fixture among them

import stallscope
from stallscope.data.cache import open_hook
from stallscope.data.cache.keys import fingerprint


class Files(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        with open(self.folder / str(index), "rb") as file:
            return torch.tensor([float(self.read(index, file))])

    def read(self, index, file):
        return file.read()[0]


class Caught(Files):
    """A third of its samples need the file itself, and are another one where that fails."""

    def read(self, index, file):
        try:
            return numpy.fromfile(file, dtype=numpy.uint8)[0] if index % 3 == 1 else file.read()[0]
        except Exception:
            return -1


class Looked(Files):
    """A third of its samples go by what kind of file it is."""

    def read(self, index, file):
        names = ("peek", "raw", "getbuffer", "getvalue", "detach", "mode")
        if index % 3 != 1:
            return file.read()[0]
        kind = [hasattr(file, name) for name in names] + [file.writable(), type(file).__name__ == "BufferedReader"]
        return sum(2**at for at, one in enumerate(kind) if one)


class Peeked(Files):
    def read(self, index, file):
        return file.peek(1)[0] + file.read(1)[0] + file.read()[0]


def fill(folder, add=0):
    folder.mkdir(exist_ok=True)
    for index in range(SAMPLES):
        (folder / str(index)).write_bytes(bytes([index + add]) * 3000)
    return folder


@pytest.mark.parametrize("kind", [Files, Caught, Looked, Peeked])
def test_samples_of_files_are_those_of_torch(tmp_path, kind):
    dataset = kind(fill(tmp_path / "files"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        loader = stallscope.DataLoader(dataset, batch_size=4, cache="4MiB")
        cached = [values(loader) for _ in range(2)]
    assert cached == [values(torch.utils.data.DataLoader(dataset, batch_size=4))] * 2
    assert loader.cache_figures()["hits"] > 0, "of those that need no more than the bytes"


def test_a_file_from_memory_says_when_more_was_asked_for():
    for ask in (lambda file: file.fileno(), lambda file: file.raw, lambda file: file.detach()):
        file = open_hook.Held(b"bytes", "name")
        with pytest.raises((OSError, AttributeError)):
            ask(file)
        assert file.lacked
    file = open_hook.Held(b"bytes", "name")
    assert not hasattr(file, "nothing that a file has") and (file.peek(), file.read()) == (b"bytes", b"bytes")
    with pytest.raises(OSError):
        file.write(b"more")
    assert not file.lacked


@pytest.mark.parametrize("how", ["replaced", "linked"])
def test_another_file_with_the_same_size_and_time_is_read(tmp_path, how, monkeypatch):
    # Files are looked at however long that takes while the machine is busy.
    monkeypatch.setattr(fingerprint, "_LOOK_NS", 10**12)
    first, second = fill(tmp_path / "first"), fill(tmp_path / "second", 100)
    for folder in (first, second):
        for file in folder.iterdir():
            os.utime(file, ns=(10**18, 10**18))
    link = tmp_path / "data"
    link.symlink_to(first)
    loader = stallscope.DataLoader(Files(link), batch_size=4, cache="4MiB")
    assert values(loader) == list(range(SAMPLES))
    assert loader.cache_figures()["looks_at_files"]
    if how == "linked":
        link.unlink()
        link.symlink_to(second)
    else:
        for file in second.iterdir():
            os.replace(file, first / file.name)
    assert values(loader) == list(range(100, 100 + SAMPLES))
