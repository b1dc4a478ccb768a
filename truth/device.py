"""A device that works asynchronously, on paper: it knows when it will be done with what it was given.

The profiler's shim measures through it as through CUDA events (see its `STALLSCOPE_DEVICE`).
"""

import select
import time


class FakeDevice:
    """A stream of work; `busy_until_ns` is when all of it is done."""

    # Nanoseconds of work that may be queued before the host has to wait, as launch queues have an end.
    DEPTH_NS = 100_000_000

    def __init__(self):
        self.busy_until_ns = 0

    def submit(self, work_ns: int) -> int:
        """Queues work, waiting while the queue is full. Returns when the device will be done."""
        ahead_ns = self.busy_until_ns - time.monotonic_ns()
        if ahead_ns > self.DEPTH_NS:
            select.select([], [], [], (ahead_ns - self.DEPTH_NS) / 1e9)
        self.busy_until_ns = max(self.busy_until_ns, time.monotonic_ns()) + work_ns
        return self.busy_until_ns

    # What the shim asks for.

    def ready(self) -> bool:
        return self.busy_until_ns > 0

    def record(self) -> int:
        return max(self.busy_until_ns, time.monotonic_ns())

    def query(self, event: int) -> bool:
        return time.monotonic_ns() >= event

    def elapsed_ms(self, first: int, last: int) -> float:
        return (last - first) / 1e6

    def recycle(self, event: int):
        pass


_device = FakeDevice()


def fake() -> FakeDevice:
    """This process's one device."""
    return _device
