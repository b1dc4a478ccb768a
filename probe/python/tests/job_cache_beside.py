"""As job_cache_job.py, with data sets that take from more than the file of a sample, or from it in another way."""

import builtins
import errno
import io
import os
import random
from pathlib import Path

import job_cache_job
from job_cache_job import FILES, Digest, Files, epochs

LABELS = None


class Labelled(Files):
    """The next label of a stream goes with each sample."""

    def read(self, index):
        return super().read(index) + LABELS()


def next_of(read):
    global LABELS
    LABELS = read


def labels(folder):
    path = folder + "-labels"
    Path(path).write_bytes(b"".join(b"%07d" % number for number in range(1000)))
    return path


def of_a_global(folder):
    file = io.FileIO(labels(folder))
    next_of(lambda: file.read(7))
    return epochs(folder, Labelled)


def of_a_descriptor(folder):
    descriptor = os.open(labels(folder), os.O_RDONLY)
    next_of(lambda: os.read(descriptor, 7))
    return epochs(folder, Labelled)


def of_a_pipe(folder):
    reading, writing = os.pipe()
    os.write(writing, Path(labels(folder)).read_bytes())
    next_of(lambda: os.read(reading, 7))
    # One that takes from a pipe is not tried to its end.
    return epochs(folder, Labelled, uses=0)


class Drawn:
    """A path that is another one each time it is asked for."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return random.choice(self.path)


def drawn(folder):
    def kind(folder):
        files = Files(folder)
        files.paths = [Drawn([path, files.paths[0]]) for path in files.paths]
        return files

    return epochs(folder, kind, uses=0)


class Blank(Files):
    """Does without what cannot be opened."""

    def read(self, index):
        try:
            return super().read(index)
        except OSError as error:
            return repr(error).encode()


def own_open(folder):
    """The script's own, for which the same name is another file in each epoch, and which fails for a moment."""
    real, roots = builtins.open, [folder, folder + "-other"]
    os.makedirs(roots[1], exist_ok=True)
    for number in range(FILES):
        Path(roots[1], f"{number:02}").write_bytes(Path(folder, f"{number:02}").read_bytes()[::-1])

    failed = set()

    def opened(path, *arguments, **more):
        name = str(path)
        if name.endswith("/07") and (name, roots[0]) not in failed:
            failed.add((name, roots[0]))
            raise OSError(errno.EIO, "a bad moment", name)
        return real(name.replace("/epoch", roots[0]) if name.startswith("/epoch/") else path, *arguments, **more)

    digest, dataset = Digest(), Blank(folder)
    dataset.paths = [f"/epoch/{number:02}" for number in range(FILES)]
    loader = job_cache_job.DataLoader(dataset, batch_size=4)
    builtins.open = opened
    try:
        for _ in range(3):
            digest.add(list(loader))
            roots.reverse()
    finally:
        builtins.open = real
    return digest.text(), 0


class Kept(Files):
    """Keeps some of its files open."""

    def __init__(self, folder):
        super().__init__(folder)
        self.kept = {}

    def read(self, index):
        if index not in (3, 4):
            return super().read(index)
        if index not in self.kept:
            self.kept[index] = open(self.paths[index], "rb")
        self.kept[index].seek(0)
        return self.kept[index].read()


def kept(folder):
    """One that is open is written to, and another one comes to the place of the other."""
    digest, dataset = Digest(), Kept(folder)
    loader = job_cache_job.DataLoader(dataset, batch_size=4)
    for epoch in range(3):
        digest.add(list(loader))
        with open(dataset.paths[3], "r+b") as file:
            file.write(b"%d" % epoch)
        Path(folder, "new").write_bytes(b"%d" % epoch)
        os.replace(Path(folder, "new"), dataset.paths[4])
    return digest.text(), 2 * (FILES - 2)


class Pieces(Files):
    """Takes as much of some as comes at a time."""

    def read(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read1() if index == 9 else file.read()


def pieces(folder):
    Path(folder, "09").write_bytes(b"long" * 100_000)
    return epochs(folder, Pieces)


job_cache_job.SCENARIOS.update(
    {"global": of_a_global, "descriptor": of_a_descriptor, "pipe": of_a_pipe, "drawn": drawn, "own-open": own_open, "kept": kept, "read1": pieces}
)

if __name__ == "__main__":
    job_cache_job.main()
