"""What a truth job writes down about itself: for each thread, contiguous pieces of its life.

A mark says what the thread did since its previous mark, how long it was runnable without a CPU meanwhile, and how long it
had one. Independent of the profiler: it needs perf_event_open, /proc and a file, nothing else.
"""

import mmap
import os
import struct
import threading
import time
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from switches import Off, Switches

FOLDER = "STALLSCOPE_TRUTH_LOG"
RECORD = struct.Struct("<QQQIiQ")
CAPACITY = 1 << 17


class Did(IntEnum):
    """What the piece that ends at a mark was spent on; from ENTER on: what happened at its end."""

    BEGIN = 0
    IDLE = 1
    FETCH = 2
    PREP = 3
    COMPUTE = 4
    PERSIST = 5
    SNAPSHOT = 6
    COLLECTIVE = 7
    SLEEP = 8
    # next() was entered; `value` is the loader's number.
    ENTER = 9
    # next() handed over the batch whose token is `value`; `extra` is Phase.
    EXIT = 10
    # The batch with the token `value` is about to leave its producer.
    READY = 11
    # The iterator of the loader `value` is exhausted or was dropped.
    END = 12
    # This process is the trainer whose rank is `value`.
    RANK = 13
    # The device got work and will be done with all of it at `value`.
    DEVICE = 14
    # The loop itself got data, from a file, a map or a pipe.
    READ = 15
    # A training step of a loop without a loader ended; `value` counts them.
    STEP = 16
    # On the way of the batch with the token `value`: its worker's feeder thread took it up, and is about to write it.
    TAKEN = 17
    SENT = 18
    # The trainer, or its pin-memory thread, has read the message, and has all of the batch.
    ARRIVED = 19
    RECEIVED = 20
    # A worker's resource sharer is about to hand over a descriptor, and has done so.
    SERVING = 21
    SERVED = 22
    # A save of `value` bytes, which the loop did not wait for, took this piece.
    SAVED = 23
    # The trainer slept until the thread `value` of its process was done with a part of the step.
    HELPED = 24
    # Who reads a batch is about to ask a worker's resource sharer for a descriptor, and has it.
    ASKING = 25
    HANDED = 26


class Phase(IntEnum):
    TRAINING = 0
    EVALUATION = 1
    # Before an epoch, to see what a batch is like.
    LOOK = 2


class Mark(NamedTuple):
    time_ns: int
    runnable_ns: int
    value: int
    did: Did
    extra: int
    cpu_ns: int = 0


class Log:
    """One thread's marks, in a mapped file, so that they survive whatever ends the process. Raises OSError."""

    def __init__(self, folder: str):
        tid = threading.get_native_id()
        file = os.open(f"{folder}/{os.getpid()}.{tid}", os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(file, RECORD.size * CAPACITY)
        self.map = mmap.mmap(file, RECORD.size * CAPACITY)
        os.close(file)
        self.at = 0
        # Whether a producer is between two samples of one batch; kept here for it.
        self.in_batch = False
        self.schedstat = os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY)
        self.switches = Switches()
        self.begun_ns = time.monotonic_ns()
        self.clock = RunnableClock(self.run_delay_ns())
        self.mark(Did.BEGIN)

    def mark(self, did: Did, value: int = 0, extra: int = 0) -> int:
        """The piece since the last mark was spent on `did`. Returns now, CLOCK_MONOTONIC ns."""
        # A thread that loses its CPU between two clocks would have that wait before the mark by one and after it by the
        # other. This is where a thread that computes enters the kernel, so it is where the CPU is taken from it.
        run_delay_ns = before_ns = None
        while before_ns is None or run_delay_ns != before_ns:
            before_ns = self.run_delay_ns()
            off, now_ns = self.switches.read(), time.monotonic_ns()
            run_delay_ns = self.run_delay_ns()
        if self.at < len(self.map):
            runnable_ns = self.clock.read(run_delay_ns, off)
            cpu_ns = now_ns - self.begun_ns - self.clock.preempted_ns - off.asleep_ns
            RECORD.pack_into(self.map, self.at, now_ns, runnable_ns, value, did, extra, max(0, cpu_ns))
            self.at += RECORD.size
        return now_ns

    def run_delay_ns(self) -> int:
        return int(os.pread(self.schedstat, 64, 0).split()[1])


class RunnableClock:
    """How long a thread was ready to run without a CPU. Of a preemption its perf events tell; of the queueing after a
    sleep schedstat's run delay does, less what that has too much for preemptions."""

    def __init__(self, run_delay_ns: int):
        self.run_delay_ns, self.off = run_delay_ns, Off()
        self.runnable_ns = self.preempted_ns = 0
        # Of the pieces without a sleep.
        self.preemptions, self.too_much_ns = 0, 0

    def read(self, run_delay_ns: int, off: Off) -> int:
        delay_ns = run_delay_ns - self.run_delay_ns
        # More than schedstat's only where switches have no events, as under some hypervisors: the time from one that has an
        # event to the next that has one then counts as a single preemption.
        preempted_ns = min(off.preempted_ns - self.off.preempted_ns, delay_ns)
        preemptions = off.preemptions - self.off.preemptions
        asleep_ns = off.asleep_ns - self.off.asleep_ns
        self.run_delay_ns, self.off = run_delay_ns, off
        self.runnable_ns += preempted_ns
        self.preempted_ns += preempted_ns
        if asleep_ns == 0:
            self.preemptions += preemptions
            self.too_much_ns += delay_ns - preempted_ns
        else:
            too_much_ns = preemptions * self.too_much_ns // max(1, self.preemptions)
            self.runnable_ns += min(asleep_ns, max(0, delay_ns - preempted_ns - too_much_ns))
        return self.runnable_ns


_local = threading.local()


def _forget_parent():
    global _local
    _local = threading.local()


os.register_at_fork(after_in_child=_forget_parent)


def log() -> Log:
    """The calling thread's log, opened on first use."""
    try:
        return _local.log
    except AttributeError:
        _local.log = Log(os.environ[FOLDER])
        return _local.log


STOP = "stop"


def stopped() -> bool:
    """Whether the job shall end: somebody has put a file STOP beside the logs."""
    return os.path.exists(f"{os.environ[FOLDER]}/{STOP}")


def read(path: Path) -> list[Mark]:
    """The marks of one thread, in order."""
    data = path.read_bytes()
    marks = []
    for time_ns, runnable_ns, value, did, extra, cpu_ns in RECORD.iter_unpack(data):
        if time_ns == 0:
            break
        marks.append(Mark(time_ns, runnable_ns, value, Did(did), extra, cpu_ns))
    if len(marks) == CAPACITY:
        raise ValueError(f"{path} is full ({CAPACITY} marks): the job ran too long for its log")
    return marks


def read_folder(folder: Path) -> dict[tuple[int, int], list[Mark]]:
    """Every thread's marks by (pid, tid)."""
    logs = {}
    for path in sorted(Path(folder).iterdir()):
        pid, _, tid = path.name.partition(".")
        if pid.isdigit() and tid.isdigit():
            logs[int(pid), int(tid)] = read(path)
    return logs
