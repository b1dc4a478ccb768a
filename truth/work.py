"""Work that takes a given CPU time, whatever else runs, and writes down each half millisecond of it."""

import threading
import time
import zlib
from functools import cache

import torch
from log import Did, Log
from log import log as thread_log

PIECE_NS = 500_000
CHUNK = bytes(range(256)) * 256
LONG_CHUNK = CHUNK * 16


def burn(log: Log, cpu_ns: int, did: Did):
    """Uses `cpu_ns` of this thread's CPU time with the GIL released most of it, as image decoders do."""
    end_ns = time.thread_time_ns() + cpu_ns
    marked_ns = log.mark(did)
    while time.thread_time_ns() < end_ns:
        zlib.crc32(CHUNK)
        if time.monotonic_ns() - marked_ns > PIECE_NS:
            marked_ns = log.mark(did)
    log.mark(did)


@cache
def chunk_ns() -> int:
    """CPU time of one chunk, on average over as many as take some milliseconds."""
    begun_ns, chunks = time.thread_time_ns(), 200
    for _ in range(chunks):
        zlib.crc32(CHUNK)
    return max(1, (time.thread_time_ns() - begun_ns) // chunks)


def burn_silently(log: Log, cpu_ns: int, did: Did):
    """Uses about `cpu_ns`, without a system call in which the scheduler could take the CPU away."""
    log.mark(did)
    for _ in range(cpu_ns // chunk_ns()):
        zlib.crc32(CHUNK)
    log.mark(did)


def burn_on():
    """Uses a CPU until the process ends, most of it without the GIL, as a thread that compresses does."""
    while True:
        zlib.crc32(LONG_CHUNK)


class Helper:
    """A thread that does a part of each step while the loop sleeps until it is done, as the threads of a parallel region do."""

    def __init__(self, cpu_ns: int):
        self.cpu_ns = cpu_ns
        self.go, self.done = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.done.acquire()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        mine = thread_log()
        while True:
            self.go.acquire()
            mine.mark(Did.IDLE)
            burn_silently(mine, self.cpu_ns, Did.COMPUTE)
            self.done.release()

    def help(self, log: Log):
        log.mark(Did.COMPUTE)
        self.go.release()
        self.done.acquire()
        log.mark(Did.HELPED, self.thread.native_id)


class Trainer:
    """A small model whose training step is repeated until it has used its CPU time."""

    def __init__(self, width: int = 128, extra_mb: int = 0):
        layers = [torch.nn.Linear(width, width) for _ in range(2)]
        # Ballast makes a checkpoint as big as asked without making the step dearer.
        ballast = torch.nn.Parameter(torch.randn(extra_mb << 18), requires_grad=False)
        self.model = torch.nn.Sequential(*layers)
        self.model.register_parameter("ballast", ballast)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.input = torch.randn(64, width)

    def step(self, log: Log, cpu_ns: int, train: bool = True):
        end_ns = time.thread_time_ns() + cpu_ns
        while time.thread_time_ns() < end_ns:
            loss = self.model(self.input).square().mean()
            if train:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            log.mark(Did.COMPUTE)

    def state(self) -> dict:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
