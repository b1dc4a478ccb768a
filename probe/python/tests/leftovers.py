"""What a process has, to be looked at once a loader is done with: children, descriptors, memory."""

import contextlib
import multiprocessing
import os
import time


def children():
    return sorted(int(pid) for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split())


def left(limit_s=100):
    """Children that do not end. torch does not wait for a worker that it terminates, and one that takes 5 s to leave, as on a busy machine,
    is terminated."""
    deadline = time.monotonic() + limit_s
    while (there := [child for child in children() if not is_pythons_own(child)]) and time.monotonic() < deadline:
        # Reaps those that have ended.
        multiprocessing.active_children()
        time.sleep(0.02)
    return there


def is_pythons_own(child):
    """Whether it is one that Python starts workers by, or counts their semaphores by, and that ends with the job."""
    try:
        command = open(f"/proc/{child}/cmdline").read()
    except OSError:
        return False
    return "multiprocessing.forkserver import" in command or "multiprocessing.resource_tracker import" in command


def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096


def descriptors(but=()):
    """How many this process has, but those of a kind, as of "pipe"."""
    kinds = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            kinds.append(os.readlink(f"/proc/self/fd/{number}").split(":")[0])
    return sum(kind not in but for kind in kinds)
