"""Those jobs of adding.py that have files, pipes, locks or connections open while workers are added."""

import fcntl
import os
import socket
import subprocess
import tempfile
import time

from resizing import BATCH, WORKERS, Numbers, epochs, loader, report, step, values


class Recorded(Numbers):
    """Has its samples in a file, of which it reads one after it has gone there."""

    def __init__(self, batches):
        super().__init__(batches)
        self.file = tempfile.TemporaryFile(buffering=0)
        self.file.write(b"".join(index.to_bytes(8, "little") for index in range(self.samples)))

    def __getitem__(self, index):
        self.file.seek(8 * index)
        time.sleep(0.001)
        return super().__getitem__(int.from_bytes(self.file.read(8), "little"))


class Numbered(Recorded):
    """The same with nothing but the file's descriptor, as a library in C has it."""

    def __init__(self, batches):
        super().__init__(batches)
        self.descriptor = os.dup(self.file.fileno())
        self.file.close()

    def __getitem__(self, index):
        os.lseek(self.descriptor, 8 * index, os.SEEK_SET)
        time.sleep(0.001)
        return Numbers.__getitem__(self, int.from_bytes(os.read(self.descriptor, 8), "little"))


class Sequential(Numbers):
    """Gives what comes next."""

    def __init__(self, batches):
        super().__init__(batches)
        self.following = iter(range(self.samples))

    def __getitem__(self, index):
        return super().__getitem__(next(self.following))


def piped(batches, paired=False):
    """Writes to a process that ends when there is nothing more to read, from before workers are added until after."""
    numbers = loader(batches)
    iterator, got = iter(numbers), []
    ours, theirs = socket.socketpair()
    reader = subprocess.Popen(["cat"], stdin=theirs if paired else subprocess.PIPE, stdout=subprocess.DEVNULL)
    theirs.close()
    sink = ours if paired else reader.stdin
    for batch in iterator:
        got += values(batch)
        added = len(iterator._workers) > WORKERS
        if added and sink is not None:
            sink.close()
            sink = None
            try:
                report(ended=reader.wait(30))
            except subprocess.TimeoutExpired:
                reader.kill()
                report(ended=None)
        step()
    report(got=got)


class Piped(Numbers):
    """Takes its samples from a pipe, of which it has the descriptor."""

    def __init__(self, batches):
        super().__init__(batches)
        self.descriptor, sink = os.pipe()
        fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.write(sink, b"".join(index.to_bytes(8, "little") for index in range(self.samples)))

    def __getitem__(self, index):
        time.sleep(0.001)
        return super().__getitem__(int.from_bytes(os.read(self.descriptor, 8), "little"))


def locking(batches):
    """Takes a lock on a file again and again, which ends with the file."""
    path, got = os.path.join(os.environ["UNTIL"], "lock"), []

    def opened():
        with open(path, "w") as file:
            return os.dup2(file.fileno(), 200)

    # Workers have an earlier one of this number, of the same file.
    held = opened()
    iterator = iter(loader(batches))
    os.close(held)
    held = None
    for batch in iterator:
        got += values(batch)
        if held is None:
            held = opened()
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif len(got) // BATCH % 8 == 0:
            os.close(held)
            held = None
        step()
    report(got=got)


def connected(batches):
    """As `piped`, to a peer over a network."""
    iterator, got = iter(loader(batches)), []
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    for batch in iterator:
        got += values(batch)
        if len(iterator._workers) > WORKERS and ours is not None:
            ours.close()
            ours = None
            theirs.settimeout(30)
            report(ended=len(theirs.recv(1)))
        step()
    report(got=got)


class Lazy:
    """Stands for a file that each worker opens when it first reads, as proxies of libraries do."""

    __slots__ = ("opens", "opened")

    def __init__(self, opens):
        self.opens, self.opened = opens, None

    @property
    def __class__(self):
        return type(self.file())

    def file(self):
        if self.opened is None:
            self.opened = self.opens()
        return self.opened

    def __getattr__(self, name):
        return getattr(self.file(), name)


class Proxied(Recorded):
    def __init__(self, batches):
        super().__init__(batches)
        path = f"/proc/self/fd/{self.file.fileno()}"
        self.lazy = Lazy(lambda: open(path, "rb", buffering=0))

    def __getitem__(self, index):
        self.lazy.seek(8 * index)
        time.sleep(0.001)
        return Numbers.__getitem__(self, int.from_bytes(self.lazy.read(8), "little"))


SCENARIOS = {
    "proxied": lambda n: epochs(loader(n, Proxied)),
    "recorded": lambda n: epochs(loader(n, Recorded, num_workers=1)),
    "numbered": lambda n: epochs(loader(n, Numbered, num_workers=1)),
    "sequential": lambda n: epochs(loader(n, Sequential, num_workers=1), count=1),
    "queued": lambda n: epochs(loader(n, Piped, num_workers=1), count=1),
    "locking": locking,
    "connected": connected,
    "piped": piped,
    "paired": lambda n: piped(n, paired=True),
}
