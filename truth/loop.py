"""A training loop without a DataLoader that knows what it does to itself and writes it down (see log.py)."""

import argparse
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy
import sources
import torch
from checkpoints import save_beside
from log import Did, log, stopped
from work import burn

MS = 1_000_000
# Windows in a batch of the memory map, of as many bytes each.
WINDOWS, WINDOW_BYTES = 4, 2048


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=8, help="of training, first step included")
    add("--folder", default=".", help="made by sources.make")
    add("--samples", type=int, default=1024)
    add("--port", type=int, default=0, help="unused")
    add("--source", choices=[*SOURCES], default="memmap")
    add("--readers", type=int, default=1, help="threads that read, where threads do")
    add("--prep-ms", type=float, default=0, help="CPU that a thread spends on what it has read")
    add("--accumulate", type=int, default=1, help="batches a step of the optimiser")
    add("--by-script", action="store_true", help="update without an optimiser, and tell the steps by stallscope.step()")
    add("--compute-ms", type=float, default=10, help="CPU a batch")
    add("--save", choices=["thread", "fork"], help="the state, beside the loop, every so many steps")
    add("--save-every", type=int, default=30)
    add("--save-mb", type=int, default=32)
    return parser.parse_args()


class Memmap:
    """Random windows of one big file, mapped anew for every batch, as nanoGPT does."""

    # What a batch takes is the loop's own reading, which it marks.
    reads_here = True

    def __init__(self, options: argparse.Namespace):
        self.path = Path(options.folder) / sources.BIG
        self.file = os.open(self.path, os.O_RDONLY)

    def batch(self) -> bytes:
        data = numpy.memmap(self.path, dtype=numpy.uint8, mode="r")
        starts = [random.randrange(len(data) - WINDOW_BYTES) for _ in range(WINDOWS)]
        batch = b"".join(numpy.array(data[start : start + WINDOW_BYTES]).tobytes() for start in starts)
        del data
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        return batch


class Reader:
    """Opens and reads a file after the other."""

    reads_here = True

    def __init__(self, options: argparse.Namespace):
        self.source, self.index = sources.Read(options.folder, 65536, options.samples), 0

    def batch(self) -> bytes:
        self.index += 7919
        return self.source.fetch(self.index)


class Pipe:
    """A child process reads, and passes the bytes on through a pipe."""

    reads_here = True
    BATCH_BYTES = 65536

    def __init__(self, options: argparse.Namespace):
        command = [sys.executable, __file__, "--source", "reader", "--folder", options.folder, "--samples", str(options.samples)]
        environment = {**os.environ, "STALLSCOPE_TRUTH_PIPE": "1"}
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, bufsize=0)

    def batch(self) -> bytes:
        data = b""
        while len(data) < self.BATCH_BYTES:
            data += self.child.stdout.read(self.BATCH_BYTES - len(data))
        return data


class Threads:
    """Threads of the job's own read and prepare, and the loop takes what the next one is done with."""

    reads_here = False

    def __init__(self, options: argparse.Namespace):
        self.ready = queue.Queue(1)
        for number in range(options.readers):
            threading.Thread(target=self.read, args=(options, number), daemon=True).start()

    def read(self, options: argparse.Namespace, number: int):
        source = Reader(options)
        source.index = number * 104729
        log()
        while True:
            data = source.batch()
            log().mark(Did.FETCH)
            burn(log(), int(options.prep_ms * MS), Did.PREP)
            self.ready.put((data, threading.get_native_id()))
            log().mark(Did.IDLE)

    def batch(self) -> bytes:
        return taken(self.ready)


class Batcher(Threads):
    """The same, with a thread in between that makes a batch of several."""

    PARTS = 4

    def __init__(self, options: argparse.Namespace):
        super().__init__(options)
        self.batches = queue.Queue(1)
        threading.Thread(target=self.join, daemon=True).start()

    def join(self):
        log()
        while True:
            data = b"".join(taken(self.ready)[:1024] for _ in range(self.PARTS))
            log().mark(Did.PREP)
            self.batches.put((data, threading.get_native_id()))
            log().mark(Did.IDLE)

    def batch(self) -> bytes:
        return taken(self.batches)


def taken(of: queue.Queue) -> bytes:
    """What a thread has put there, which is what this thread has slept for."""
    data, by = of.get()
    log().mark(Did.HELPED, by)
    return data


SOURCES = {"memmap": Memmap, "reader": Reader, "pipe": Pipe, "threads": Threads, "batcher": Batcher}


def feed(options: argparse.Namespace):
    """The child's part: what it reads, to its standard output, as long as somebody takes it."""
    source = Reader(options)
    while True:
        try:
            os.write(1, source.batch())
        except BrokenPipeError:
            return


class Saves:
    """Saves the state in a thread or a forked child of its own, which the loop does not wait for until its end."""

    def __init__(self, options: argparse.Namespace):
        self.begin = {"thread": self.begin_thread, "fork": self.begin_child}[options.save]
        self.every, self.state = options.save_every, {"state": torch.randn(options.save_mb << 18)}
        self.folder = tempfile.TemporaryDirectory(prefix="stallscope-truth-")
        self.begun = []

    def step(self, steps: int):
        if steps % self.every == 0:
            self.begun.append(self.begin(Path(self.folder.name) / "state.pt"))

    def begin_thread(self, path: Path):
        thread = threading.Thread(target=save_beside, args=(self.state, path))
        thread.start()
        return thread.join

    def begin_child(self, path: Path):
        if child := os.fork():
            return lambda: os.waitpid(child, 0)
        try:
            save_beside(self.state, path)
        finally:
            os._exit(0)

    def close(self):
        for wait in self.begun:
            wait()
        self.folder.cleanup()


class Loop:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.source = SOURCES[options.source](options)
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = None if options.by_script else torch.optim.AdamW(self.model.parameters())
        self.saves = Saves(options) if options.save else None
        self.steps = 0

    def run(self):
        stop = time.monotonic() + self.options.seconds
        while time.monotonic() < stop and not stopped():
            for _ in range(self.options.accumulate):
                self.learn()
            self.update()
            self.steps += 1
            log().mark(Did.COMPUTE)
            log().mark(Did.STEP, self.steps)
            if self.saves:
                self.saves.step(self.steps)
        if self.saves:
            self.saves.close()

    def learn(self):
        log().mark(Did.COMPUTE)
        data = self.source.batch()
        if self.source.reads_here:
            log().mark(Did.READ)
        burn(log(), int(self.options.compute_ms * MS), Did.COMPUTE)
        batch = torch.frombuffer(bytearray(data[:4096]), dtype=torch.uint8).float().view(64, 64)
        self.model(batch).square().mean().backward()

    def update(self):
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()
            return
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 1e-4 * parameter.grad
                parameter.grad = None
        tell_step()


def tell_step():
    import stallscope

    stallscope.step()


def main():
    options = flags()
    if os.environ.get("STALLSCOPE_TRUTH_PIPE"):
        feed(options)
        return
    torch.set_num_threads(1)
    # As where somebody installed it.
    sys.path.append(str(Path(__file__).parents[1] / "target" / "python"))
    log().mark(Did.RANK, int(os.environ.get("RANK", 0)))
    Loop(options).run()


if __name__ == "__main__":
    main()
