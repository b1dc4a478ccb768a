"""A script that knows nothing of stallscope and iterates torch's loaders over files, in many ways.

usage: job_cache_job.py FOLDER SCENARIO...; prints for each a JSON line: its name, what came of it, and how often a cache that holds all
files would have had one.
"""

import copy
import functools
import gc
import hashlib
import io
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Subset, get_worker_info

FILES, BATCH = 30, 4


class Files(Dataset):
    """Draws from each generator of the process that there is."""

    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def __len__(self):
        return len(self.paths)

    def read(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read()

    def __getitem__(self, index):
        info = get_worker_info()
        assert info is None or info.dataset is self
        data = self.read(index)
        return int(index), hashlib.sha256(data).hexdigest(), torch.rand(2), random.random(), numpy.random.rand()


class Paths(Files):
    def read(self, index):
        return Path(self.paths[index]).read_bytes()


class Named(Files):
    """Opens its files by names of all kinds."""

    def read(self, index):
        path = self.paths[index]
        name = (path, Path(path), os.fsencode(path), os.path.relpath(path))[index % 4]
        with open(name, "rb") as file:
            return file.read() + repr((type(file.name), file.name == os.fspath(name))).encode()


class Pieces(Files):
    """Goes to and fro in its file, as decoders do."""

    def read(self, index):
        with open(self.paths[index], "rb") as file:
            file.seek(0, io.SEEK_END)
            size = file.tell()
            file.seek(0)
            head, rest = file.peek(4)[:4], bytearray(size)
            file.readinto(rest)
            assert isinstance(file.name, str) and file.mode == "rb" and not file.closed and size == len(rest)
        assert file.closed
        return head + bytes(rest)


class Arrays(Files):
    def __init__(self, folder):
        super().__init__(folder)
        self.folder = folder + "-arrays"
        os.makedirs(self.folder, exist_ok=True)
        for number, path in enumerate(self.paths):
            self.paths[number] = os.path.join(self.folder, f"{number}.npy")
            numpy.save(self.paths[number], numpy.frombuffer(Path(path).read_bytes(), dtype=numpy.uint8))

    def read(self, index):
        return numpy.load(self.paths[index]).tobytes()


class AlsoItself(Files):
    """Of some samples it wants what only the file has, in the midst of reading."""

    def read(self, index):
        with open(self.paths[index], "rb") as file:
            head = file.read(3)
            if index % 7 == 3:
                head += b"%d" % os.fstat(file.fileno()).st_size + file.readline() + b"".join(file.readlines(10))
            if index % 7 == 5:
                head += repr(type(file.raw)).encode() + next(file)
            return head + file.read()


class Unbuffered(Files):
    def read(self, index):
        with open(self.paths[index], "rb", buffering=0) as file:
            head = file.read(3)
            return head + (file.readall() if index % 7 == 3 else file.read())


def tried(call):
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Odd(Files):
    """Asks for what a file refuses, and reads on; not in the first and the last sample, which are those that are tried."""

    def read(self, index):
        if index in (0, FILES - 1):
            return super().read(index)
        file = open(self.paths[index], "rb")
        calls = [
            lambda: file.seek(-9000, 2), lambda: file.seek(-5, 1), lambda: file.seek(-1), lambda: file.read(-2), lambda: file.seek(2**70),
            lambda: file.seek(0, 7), lambda: file.seek(2**63 - 1), lambda: file.truncate(3), lambda: file.write(b"x"), lambda: file.writelines([]),
            lambda: file.readinto("x"), lambda: copy.copy(file), lambda: pickle.dumps(file), lambda: file.absent, lambda: file.read("x"),
        ]  # fmt: skip
        # One for each sample, so that the others go on with the bytes.
        found = [tried(calls[index % len(calls)]), file.read(5), file.tell(), tried(lambda: file.seek(3)), file.readline(), file.read()]
        file.close()
        closed = [file.read, file.tell, file.readline, file.fileno, lambda: file.seek(0), lambda: next(file), file.readlines, lambda: iter(file)]
        return repr([*found, *map(tried, closed)]).encode()


class Indices:
    """Of a subset: to look one up is a draw."""

    def __len__(self):
        return FILES

    def __getitem__(self, at):
        return (at + random.randrange(3)) % FILES


class Properties(DataLoader):
    @property
    def dataset(self):
        return self.its

    @dataset.setter
    def dataset(self, value):
        self.its = value


class Broken(Files):
    def read(self, index):
        if index == 17:
            raise KeyError(f"{index} of {len(super().read(index))} bytes")
        return super().read(index)


class Recovering(Broken):
    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except KeyError:
            return super().__getitem__((index + 1) % len(self))


class Batched(Files):
    def __getitems__(self, indices):
        drawn = torch.rand(1).item()
        return [(*self[index], drawn) for index in indices]


class Warning_(Files):
    def __getitem__(self, index):
        warnings.warn(f"sample {index}", UserWarning, stacklevel=2)
        return super().__getitem__(index)


class Counting(Files):
    """What a sample is depends on those before it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.given = 0

    def __getitem__(self, index):
        self.given += 1
        return (*super().__getitem__(index), self.given)


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


class Digest:
    def __init__(self):
        self.sum = hashlib.sha256()

    def add(self, value):
        self.sum.update(repr(plain(value)).encode())

    def text(self):
        state = numpy.random.get_state()
        self.add([torch.get_rng_state(), random.getstate(), state[1].tolist(), state[2]])
        return self.sum.hexdigest()


def epochs(folder, kind=Files, count=3, uses=FILES, **more):
    """`count` epochs; the first one has nothing yet."""
    dataset, digest = kind(folder), Digest()
    more.setdefault("batch_size", BATCH)
    loader = DataLoader(dataset, **({} if "sampler" in more or "batch_sampler" in more else {"shuffle": True}), **more)
    for _ in range(count):
        for batch in loader:
            digest.add(batch)
            digest.add(torch.rand(1))
    return digest.text(), (count - 1) * uses


def lasting(folder):
    """Long enough to be turned meanwhile: slow until then, where somebody turns it."""
    digest, loader = Digest(), DataLoader(Files(folder), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in range(8):
        for batch in loader:
            digest.add(batch)
            time.sleep(0.01 if os.path.exists(os.environ.get("UNTIL", folder)) else 0.2)
    return digest.text(), None


LOADER = None


def set_by_loader(worker):
    LOADER.dataset.offset = 10 * worker


class Offset(Files):
    offset = 0

    def __getitem__(self, index):
        return (*super().__getitem__(index), self.offset)


class Looking(torch.utils.data.Sampler):
    """Goes by what its loader has."""

    def __init__(self):
        pass

    def __iter__(self):
        LOADER.dataset.offset = len(LOADER.dataset)
        return iter(range(FILES))

    def __len__(self):
        return FILES


def by_loader(folder, workers):
    """A worker's init function, and a sampler, that know the data set from its loader."""
    global LOADER
    digest = Digest()
    LOADER = DataLoader(Offset(folder), batch_size=BATCH, num_workers=workers, sampler=Looking(), worker_init_fn=set_by_loader)
    for _ in range(3):
        digest.add(list(LOADER))
    digest.add(LOADER.dataset.offset)
    LOADER = None
    return digest.text(), 2 * FILES


def raising(folder, workers):
    digest, loader = Digest(), DataLoader(Broken(folder), batch_size=BATCH, num_workers=workers)
    for _ in range(2):
        try:
            for batch in loader:
                digest.add(batch)
        except KeyError as error:
            # The traceback in the message also has the lines of what stands between.
            digest.add([type(error).__name__, str(error).strip().splitlines()[-1]])
    return digest.text(), None


class Slow(Files):
    def read(self, index):
        time.sleep(0.5)
        return super().read(index)


class Late(Exception):
    pass


def alarmed(folder):
    """An alarm ends the first epoch before its first batch is there, by handlers of several kinds."""

    def late(*args):
        raise Late

    def once(number, frame):
        signal.signal(number, signal.SIG_IGN)
        raise Late

    ends = []
    for handler in (late, functools.partial(late, 1), once):
        signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            ends.append(len(list(DataLoader(Slow(folder), batch_size=BATCH))))
        except Late:
            ends.append("late")
    return ends, None


def killed(folder):
    """The process that holds what is kept dies in mid-epoch."""
    digest, loader = Digest(), DataLoader(Files(folder), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        for number, batch in enumerate(loader):
            digest.add(batch)
            if epoch == 1 and number == 2 and "STALLSCOPE_RUNTIME_DIR" in os.environ:
                subprocess.run(["pkill", "-KILL", "-f", "_pool.py " + os.environ["STALLSCOPE_RUNTIME_DIR"]], check=True)
    return digest.text(), None


def children(folder):
    """What the script's own handler hears of ends of children, of which it has none."""
    heard = []
    before = signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
    try:
        return [epochs(folder)[0], len(heard)], 2 * FILES
    finally:
        signal.signal(signal.SIGCHLD, before)


def warned(folder):
    """Which line a warning names, and how often: once a line, by default."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        outcome = epochs(folder, Warning_)
    where = {(Path(one.filename).name, one.lineno) for one in caught if one.category is UserWarning}
    return [outcome[0], sorted(where), len(caught)], outcome[1]


def evaluated(folder):
    """Another loader is iterated without gradients, and one that trains beside the first."""
    digest, dataset = Digest(), Files(folder)
    loader, checked = DataLoader(dataset, batch_size=BATCH, shuffle=True), DataLoader(Files(folder), batch_size=BATCH)
    with torch.no_grad():
        digest.add(list(checked))
    for _ in range(2):
        digest.add(list(loader))
        with torch.no_grad():
            digest.add(list(checked))
    other = DataLoader(Paths(folder), batch_size=BATCH)
    digest.add([list(other), list(other)])
    return digest.text(), FILES


def properties(folder):
    digest, loader = Digest(), Properties(Files(folder), batch_size=BATCH, shuffle=True)
    digest.add([list(loader), list(loader)])
    return digest.text(), 0


def folder_gone(folder):
    """The job's own folder is deleted in mid-job."""
    digest, loader, before = Digest(), DataLoader(Files(folder), batch_size=BATCH, shuffle=True), os.getcwd()
    own = folder + "-own"
    os.mkdir(own)
    os.chdir(own)
    digest.add(list(loader))
    os.rmdir(own)
    digest.add(list(loader))
    os.chdir(before)
    return digest.text(), FILES


def deleted(folder):
    digest, dataset = Digest(), Files(folder)
    loader = DataLoader(dataset, batch_size=BATCH)
    digest.add(list(loader))
    os.unlink(dataset.paths[9])
    digest.add(tried(lambda: list(loader)).replace(folder, ""))
    # Those of whole batches.
    return digest.text(), 8


def together(folder):
    """Two threads make iterators of one loader at a time."""
    digest, loader, meeting = Digest(), DataLoader(Files(folder), batch_size=None), threading.Barrier(2)

    class Meeting(torch.utils.data.Sampler):
        def __init__(self):
            pass

        def __iter__(self):
            meeting.wait(60)
            return iter(range(FILES))

    loader = DataLoader(Files(folder), batch_size=None, sampler=Meeting())
    threads = [threading.Thread(target=lambda: [batch for batch in loader]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    digest.add([type(loader.dataset).__name__, type(loader.dataset) is Files, loader.worker_init_fn is None])
    return digest.text(), None


def checked_first(folder):
    digest, dataset = Digest(), Files(folder)
    checked = DataLoader(dataset, batch_size=BATCH)
    with torch.no_grad():
        digest.add(list(checked))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    digest.add([list(loader), list(loader)])
    return digest.text(), FILES


def left(folder, workers):
    """By break, and two iterators of one loader at a time."""
    digest, loader = Digest(), DataLoader(Files(folder), batch_size=BATCH, shuffle=True, num_workers=workers)
    for number, batch in enumerate(loader):
        digest.add(batch)
        if number == 2:
            break
    for one, other in zip(loader, loader):
        digest.add([one, other])
    return digest.text(), None


def rewritten(folder, workers):
    """A file changes between two epochs."""
    own = folder + "-rewritten"
    os.makedirs(own, exist_ok=True)
    for number in range(FILES):
        Path(own, f"{number:02}").write_bytes(b"one" * (number + 1))
    digest, loader = Digest(), DataLoader(Files(own), batch_size=BATCH, num_workers=workers)
    for word in (b"another", b"third", b"last"):
        digest.add(list(loader))
        for number in range(0, FILES, 3):
            Path(own, f"{number:02}").write_bytes(word * (number + 1))
    return digest.text(), 2 * (FILES - FILES // 3)


def init_fn(worker):
    info = get_worker_info()
    assert isinstance(info.dataset, Files) and info.id == worker
    random.seed(worker)


def collated(samples):
    return [sample[1:] for sample in samples], len(samples)


class Tensors(torch.utils.data.Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(torch.randperm(self.count))

    def __len__(self):
        return self.count


FORKED = {"multiprocessing_context": "fork"}
SCENARIOS = {
    **{f"fork-{count}": lambda folder, count=count: epochs(folder, num_workers=count, **(FORKED if count else {})) for count in (0, 1, 4)},
    "spawn-2": lambda folder: epochs(folder, num_workers=2, multiprocessing_context="spawn", persistent_workers=True),
    "persistent-2": lambda folder: epochs(folder, num_workers=2, persistent_workers=True),
    "out-of-order": lambda folder: epochs(folder, num_workers=1, **({"in_order": False} if _knows("in_order") else {})),
    "init-2": lambda folder: epochs(folder, num_workers=2, worker_init_fn=init_fn, collate_fn=collated),
    "paths": lambda folder: epochs(folder, Paths),
    "named": lambda folder: epochs(folder, Named),
    "pieces": lambda folder: epochs(folder, Pieces),
    "arrays": lambda folder: epochs(folder, Arrays),
    # What the file itself was asked for counts as given from memory all the same.
    "also-itself": lambda folder: epochs(folder, AlsoItself),
    "also-itself-2": lambda folder: epochs(folder, AlsoItself, num_workers=2),
    "raising-0": lambda folder: raising(folder, 0),
    "raising-2": lambda folder: raising(folder, 2),
    "recovering": lambda folder: (epochs(folder, Recovering, num_workers=1)[0], None),
    "batched-0": lambda folder: epochs(folder, Batched),
    "batched-2": lambda folder: epochs(folder, Batched, num_workers=2),
    "warned": warned,
    "counting": lambda folder: epochs(folder, Counting),
    "subset": lambda folder: epochs(folder, lambda folder: Subset(Files(folder), range(3, 20)), uses=17),
    "single": lambda folder: epochs(folder, batch_size=None),
    "tensors": lambda folder: epochs(folder, sampler=Tensors(FILES)),
    "batch-sampler": lambda folder: epochs(
        folder, batch_size=1, batch_sampler=BatchSampler(RandomSampler(range(FILES)), 7, drop_last=False)
    ),
    "by-loader-0": lambda folder: by_loader(folder, 0),
    "by-loader-2": lambda folder: by_loader(folder, 2),
    "unbuffered": lambda folder: epochs(folder, Unbuffered),
    "evaluated": evaluated,
    "killed": killed,
    "alarmed": alarmed,
    "children": children,
    "lasting": lasting,
    "checked-first": checked_first,
    "odd": lambda folder: epochs(folder, Odd),
    "indices": lambda folder: epochs(folder, lambda folder: Subset(Files(folder), Indices()), uses=0),
    "properties": properties,
    "folder-gone": folder_gone,
    "deleted": deleted,
    "together": together,
    "left-0": lambda folder: left(folder, 0),
    "left-2": lambda folder: left(folder, 2),
    "rewritten-0": lambda folder: rewritten(folder, 0),
    "rewritten-2": lambda folder: rewritten(folder, 2),
}


def _knows(argument):
    import inspect

    return argument in inspect.signature(DataLoader.__init__).parameters


def main():
    torch.set_num_threads(1)
    folder, names = sys.argv[1], sys.argv[2:]
    for seed, name in enumerate(names):
        # Of each its own, so that nothing is there from the one before.
        files = os.path.join(folder, name)
        os.makedirs(files, exist_ok=True)
        for number in range(FILES):
            Path(files, f"{number:02}").write_bytes(bytes([65 + number]) * (500 + number) + b"\nlines\nof text\n")
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        outcome, hits = SCENARIOS[name](files)
        # Its data set is gone before the next one's first epoch.
        gc.collect()
        print(json.dumps({"name": name, "outcome": outcome, "hits": hits}), flush=True)


if __name__ == "__main__":
    main()
