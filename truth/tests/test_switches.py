"""Perf's account of a thread's time without a CPU, and what of it a mark says."""

import os
import signal
import threading
import time

import pytest
from log import RunnableClock
from switches import Off, Switches

MS = 1_000_000


def in_thread(work):
    """What `work` returns, run in a thread of its own, which may use one CPU only."""
    out = []

    def run():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        out.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return out[0]


def burn(seconds: float):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_sleep_is_not_preemption():
    def work():
        switches = Switches()
        time.sleep(0.05)
        slept = switches.read()
        # A neighbour that wants the same CPU.
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            burn(20)
            os._exit(0)
        begun_ns = time.monotonic_ns()
        burn(0.4)
        burnt = switches.read()
        length_ns = time.monotonic_ns() - begun_ns
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return slept, burnt, length_ns

    slept, burnt, length_ns = in_thread(work)
    assert slept.asleep_ns >= 50 * MS
    assert burnt.asleep_ns - slept.asleep_ns < length_ns // 10
    assert length_ns // 10 < burnt.preempted_ns - slept.preempted_ns < length_ns
    assert burnt.preemptions > slept.preemptions


def test_a_ring_that_overflows_is_no_truth():
    def work():
        switches = Switches()
        turns = [threading.Semaphore(0), threading.Semaphore(0)]

        def other():
            for _ in range(30_000):
                turns[0].acquire()
                turns[1].release()

        thread = threading.Thread(target=other)
        thread.start()
        for _ in range(30_000):
            turns[0].release()
            turns[1].acquire()
        thread.join()
        with pytest.raises(RuntimeError, match="more often"):
            switches.read()
        return True

    assert in_thread(work)


def test_a_preemption_counts_from_when_the_thread_left_its_cpu():
    clock = RunnableClock(1000)
    # By schedstat each of 10 preemptions began 20 us early.
    assert clock.read(1000 + 5_200_000, Off(5_000_000, 10, 0)) == 5_000_000
    # With a sleep in between: another 10, and 300 us of queueing.
    assert clock.read(1000 + 5_200_000 + 5_500_000, Off(10_000_000, 20, 4_000_000)) == 10_300_000
    # Where the switches in between have no events.
    assert clock.read(1000 + 5_200_000 + 5_500_000 + 2_000_000, Off(70_000_000, 21, 4_000_000)) == 12_300_000
    # Never longer than the thread was off its CPU.
    assert clock.read(1000 + 20_000_000, Off(70_000_000, 21, 4_100_000)) == 12_400_000
