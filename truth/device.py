"""Devices that work asynchronously, and know when they will be done with what they were given: one on paper, through which the
profiler's shim measures as through CUDA events (see its `STALLSCOPE_DEVICE`), and a GPU that turns its time away.
"""

import collections
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

    def take(self, data):
        """Nothing to copy to."""

    def result(self):
        """Waits for what was submitted."""
        select.select([], [], [], max(0, self.busy_until_ns - time.monotonic_ns()) / 1e9)

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


# Runs for so many microseconds by the GPU's own clock, whatever its frequency.
SPIN = """
extern "C" __global__ void spin(int work_us) {
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begun < 1000ull * work_us);
}
"""


class Gpu:
    """The current CUDA device's default stream. Raises RuntimeError without one."""

    def __init__(self):
        import torch

        self.cuda = torch.cuda
        self.spin = torch.cuda._compile_kernel(SPIN, "spin")
        self.submit_now(1)
        self.cuda.synchronize()
        self.busy_until_ns = time.monotonic_ns()
        self.queued = collections.deque()

    def submit_now(self, work_us: int):
        self.spin((1, 1, 1), (1, 1, 1), (work_us,))

    def submit(self, work_ns: int) -> int:
        """As FakeDevice.submit; a full queue is waited for as a script waits that reads its loss some steps late."""
        while self.queued and self.busy_until_ns - time.monotonic_ns() > FakeDevice.DEPTH_NS:
            self.queued.popleft().synchronize()
        self.busy_until_ns = max(self.busy_until_ns, time.monotonic_ns()) + work_ns
        self.submit_now(work_ns // 1000)
        event = self.cuda.Event()
        event.record()
        self.queued.append(event)
        return self.busy_until_ns

    def take(self, data):
        """Copies a tensor, without a wait where it is pinned."""
        data.to("cuda", non_blocking=True)

    def result(self):
        self.cuda.current_stream().synchronize()


_devices = {}


def fake() -> FakeDevice:
    """This process's one device on paper."""
    return _devices.setdefault("fake", FakeDevice())


def gpu() -> Gpu:
    """This process's GPU."""
    if "gpu" not in _devices:
        _devices["gpu"] = Gpu()
    return _devices["gpu"]
