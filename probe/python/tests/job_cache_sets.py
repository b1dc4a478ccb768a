"""As job_cache_job.py, with data sets whose samples open several files each."""

import os
import random
import shutil
from pathlib import Path

import job_cache_job
from job_cache_job import FILES, Batched, DataLoader, Digest, Files, epochs, tried


class Pairs(Files):
    """Each file has a mask."""

    def __init__(self, folder):
        super().__init__(folder)
        self.masks = [os.path.join(folder + "-masks", os.path.basename(path)) for path in self.paths]
        shutil.copytree(folder, folder + "-masks", dirs_exist_ok=True)
        for number, mask in enumerate(self.masks):
            Path(mask).write_bytes(b"mask %02d" % number * (number + 1))

    def mask(self, index):
        return Path(self.masks[index]).read_bytes()

    def read(self, index):
        return super().read(index) + self.mask(index)


class BatchedPairs(Pairs, Batched):
    pass


class Twice(Pairs):
    """As where an image is verified before it is read."""

    def read(self, index):
        return super().read(index) + Path(self.paths[index]).read_bytes()


class Alone(Pairs):
    """Some have no mask."""

    def read(self, index):
        return Files.read(self, index) if index % 5 == 3 else super().read(index)


class Failing(Pairs):
    """One is made of two others' files where its own mask is not reached."""

    def read(self, index):
        try:
            if index == 17:
                raise ValueError(Files.read(self, index))
        except ValueError:
            return Files.read(self, 18)
        return super().read(index)


def partners(folder):
    """Each file comes with another one, which is drawn: a hit where it is the one of the epoch before."""
    drawn, hits = {}, []

    class Partners(Files):
        def read(self, index):
            partner = (index + random.randrange(3, 6)) % FILES
            hits.append(drawn.get(index) == partner)
            drawn[index] = partner
            return super().read(index) + super().read(partner)

    outcome, _ = epochs(folder, Partners, count=8)
    return outcome, sum(hits)


def rewritten(folder):
    """Some masks change after the first epoch: they are read once more."""
    digest, dataset = Digest(), Pairs(folder)
    loader = DataLoader(dataset, batch_size=4)
    digest.add(list(loader))
    for mask in dataset.masks[::3]:
        Path(mask).write_bytes(b"another")
    digest.add([list(loader), list(loader)])
    return digest.text(), 2 * FILES - FILES // 3


def empty(folder):
    def kind(folder):
        dataset = Pairs(folder)
        Path(dataset.masks[7]).write_bytes(b"")
        return dataset

    return epochs(folder, kind, uses=FILES - 1)


def deleted(folder):
    digest, dataset = Digest(), Pairs(folder)
    loader = DataLoader(dataset, batch_size=4)
    digest.add(list(loader))
    os.unlink(dataset.masks[9])
    digest.add(tried(lambda: list(loader)).replace(folder, ""))
    # Those of whole batches, and what came before in this one.
    return digest.text(), 8


def shared(folder):
    """Each sample opens a file that all of them open."""

    class Shared(Files):
        def read(self, index):
            return super().read(index) + super().read(5)

    return epochs(folder, Shared, uses=0)


SCENARIOS = {
    "pairs": lambda folder: epochs(folder, Pairs),
    "pairs-2": lambda folder: epochs(folder, Pairs, num_workers=2),
    "pairs-spawn": lambda folder: epochs(folder, Pairs, num_workers=1, multiprocessing_context="spawn"),
    "pairs-batched": lambda folder: epochs(folder, BatchedPairs),
    "twice": lambda folder: epochs(folder, Twice),
    "alone": lambda folder: epochs(folder, Alone, uses=FILES - 6),
    "failing": lambda folder: epochs(folder, Failing),
    "partners": partners, "rewritten": rewritten, "empty": empty, "deleted": deleted, "shared": shared,
}  # fmt: skip
job_cache_job.SCENARIOS.update({f"several-{name}": one for name, one in SCENARIOS.items()})

if __name__ == "__main__":
    job_cache_job.main()
