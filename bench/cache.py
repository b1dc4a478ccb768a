"""`make bench-cache`: what a sample costs from the pool, beside the page cache, a packed file, Redis and memcached.

Every way gets the same samples in the same random order, into memory that is the caller's own, from Python. Ways take turns,
round by round; a figure is the median over rounds of a round's median. Several processes are begun together and each times
its own calls; beside more processes than cores a call's median leaves out what waits for a core.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from table import ROOT, Row, machine, markdown, summary, write

sys.path.insert(0, str(ROOT / "target" / "python"))

from stallscope import _native, _pool  # noqa: E402

KEY = b"bench-cache"


class BenchFailed(Exception):
    pass


def content(number, size):
    return number.to_bytes(8, "little") * (size // 8)


class Ours:
    """A copy out of the pool's shared memory."""

    name = "pool"

    def __init__(self, place, samples, size, fill):
        capacity = samples * (size + 8192)
        self.space = _native.Space(str(place), _pool.command(), KEY + b"%d" % size, samples, capacity, "minio")
        for number in range(samples if fill else 0):
            if not self.space.fill(number, 0, content(number, size)):
                raise BenchFailed(f"the pool did not keep sample {number}")

    def get(self, number):
        return self.space.get(number, 0)


class Files:
    """A file a sample, from the page cache: open, read, close."""

    name = "file a sample"

    def __init__(self, place, samples, size, fill):
        self.folder = place / f"files-{size}"
        self.size = size
        if fill:
            self.folder.mkdir()
            for number in range(samples):
                (self.folder / str(number)).write_bytes(content(number, size))

    def get(self, number):
        descriptor = os.open(f"{self.folder}/{number}", os.O_RDONLY)
        try:
            return os.read(descriptor, self.size)
        finally:
            os.close(descriptor)


class Packed:
    """One file, from the page cache: pread."""

    name = "packed, pread"

    def __init__(self, place, samples, size, fill):
        path = place / f"packed-{size}"
        if fill:
            with path.open("wb") as file:
                for number in range(samples):
                    file.write(content(number, size))
        self.descriptor, self.size = os.open(path, os.O_RDONLY), size

    def get(self, number):
        return os.pread(self.descriptor, self.size, number * self.size)


class Redis:
    """GET over a Unix socket, by redis-py."""

    name = "Redis"

    def __init__(self, place, samples, size, fill):
        import redis

        self.client = redis.Redis(unix_socket_path=str(place / "redis.sock"))
        for number in range(samples if fill else 0):
            self.client.set(f"{size}-{number}", content(number, size))
        self.size = size

    def get(self, number):
        return self.client.get(f"{self.size}-{number}")

    @staticmethod
    def server(place):
        return ["redis-server", "--port", "0", "--unixsocket", str(place / "redis.sock"), "--save", "", "--dir", str(place)]


class Memcached:
    """GET over a Unix socket, by pymemcache."""

    name = "memcached"

    def __init__(self, place, samples, size, fill):
        from pymemcache.client.base import Client

        self.client = Client(str(place / "memcached.sock"))
        for number in range(samples if fill else 0):
            self.client.set(f"{size}-{number}", content(number, size), noreply=False)
        self.size = size

    def get(self, number):
        return self.client.get(f"{self.size}-{number}")

    @staticmethod
    def server(place):
        user = ["-u", "root"] if os.geteuid() == 0 else []
        return ["memcached", *user, "-s", str(place / "memcached.sock"), "-m", "4096", "-I", "8m"]


WAYS = [Ours, Files, Packed, Redis, Memcached]


def timed(get, order):
    """Nanoseconds of each call."""
    clock, times = time.perf_counter_ns, []
    for number in order:
        began = clock()
        data = get(number)
        times.append(clock() - began)
        if data is None:
            raise BenchFailed(f"sample {number} is not there")
    return times


def one_process(way, place, samples, size, calls, seed, ready, go, results):
    try:
        source = way(place, samples, size, fill=False)
        order = random.Random(seed).choices(range(samples), k=calls)
        timed(source.get, order)
        ready.release()
        go.wait()
        # Pages of files may be given up at any moment; a pass that had to read brought them back.
        for _ in range(5):
            read_before = read_bytes()
            times = timed(source.get, order)
            read = read_bytes() - read_before
            if read == 0:
                break
        results.put({"times": times, "read_bytes": read})
    except BaseException as error:
        ready.release()
        results.put({"error": f"{type(error).__name__}: {error}"})


def read_bytes():
    """What this process made the disk read."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def measured(way, place, samples, size, calls, processes):
    """All processes' calls of one round, ns, sorted."""
    context = get_context("fork")
    ready, go, results = context.Semaphore(0), context.Event(), context.SimpleQueue()
    arguments = (way, place, samples, size, calls)
    started = [
        context.Process(target=one_process, args=(*arguments, seed, ready, go, results)) for seed in range(processes)
    ]
    for process in started:
        process.start()
    for _ in started:
        ready.acquire()
    go.set()
    answers = [results.get() for _ in started]
    for process in started:
        process.join()
    for answer in answers:
        if "error" in answer:
            raise BenchFailed(f"{way.name}: {answer['error']}")
        if answer["read_bytes"]:
            raise BenchFailed(f"{way.name}: {answer['read_bytes']} bytes came from the disk, so this was not warm")
    return sorted(one for answer in answers for one in answer["times"])


def replacing(place, samples, size, until):
    """Fills samples of the pool anew under other tags, over and over: what look-ups must not be held up by."""
    space = _native.Space(str(place), _pool.command(), KEY + b"%d" % size, samples, samples * (size + 8192), "minio")
    tag = 1
    while not until.is_set():
        for number in range(0, samples, 7):
            space.fill(number, tag, content(number, size))
            space.fill(number, 0, content(number, size))
        tag += 1


def disturbed(place, samples, size, calls, processes):
    """Look-ups while one process replaces samples; the medians and the slowest hundredth, ns. A sample that is away for the
    moment is a miss, and is timed as well."""

    class Lenient(Ours):
        def get(self, number):
            return self.space.get(number, 0) or b""

    context = get_context("fork")
    until = context.Event()
    writer = context.Process(target=replacing, args=(place, samples, size, until))
    writer.start()
    try:
        return measured(Lenient, place, samples, size, calls, processes)
    finally:
        until.set()
        writer.join()


def servers(stack, place, ways):
    """Starts what has a server; BenchFailed where one is not to be had."""
    for way in ways:
        if not hasattr(way, "server"):
            continue
        command = way.server(place)
        if shutil.which(command[0]) is None:
            raise BenchFailed(f"the baseline {way.name} is missing: install {command[0]}")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        socket = Path(command[command.index("--unixsocket" if way is Redis else "-s") + 1])
        until = time.monotonic() + 10
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise BenchFailed(f"{command[0]} could not be started")
            time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--samples", type=int, default=5000, help="of 100 KiB each")
    options = parser.parse_args()
    large, small = 100 << 10, 64
    shape = {large: options.samples, small: options.samples}
    base = Path(tempfile.mkdtemp(prefix="cache-", dir=ROOT / "target"))
    taken = {}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        servers(stack, base, WAYS)
        kept = [way(base, shape[size], size, fill=True) for way in WAYS for size in (large, small)]
        for number in range(options.rounds):
            for size in (large, small):
                for way in WAYS:
                    for processes in (1, 2, 4, 8) if way is Ours else (1, 8):
                        times = measured(way, base, shape[size], size, options.calls // (1 if processes == 1 else 2), processes)
                        taken.setdefault((way.name, size, processes), []).append(times[len(times) // 2] / 1000)
            times = disturbed(base, shape[small], small, options.calls // 2, 8)
            taken.setdefault(("pool, one process replacing", small, 8), []).append(times[len(times) // 2] / 1000)
            taken.setdefault(("pool, one process replacing: p99", small, 8), []).append(times[len(times) * 99 // 100] / 1000)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        del kept
    rows, body = [], []
    for (name, size, processes), medians in taken.items():
        value = median(medians)
        case = f"{name}, {'100 KiB' if size == large else '64 B'}, {processes} process{'es' if processes > 1 else ''}"
        bar = {("pool", large, 1): 7.0, ("pool", small, 1): 1.0, ("pool", small, 8): 1.0}.get((name, size, processes))
        rows.append(Row(case, "a call", value, "us", bar and f"<= {bar:.0f} us", bar and value <= bar))
        body.append([case, f"{value:.2f}", f"{min(medians):.2f} to {max(medians):.2f}", f"{size / value / 1000:.1f}" if size == large else ""])
    print(f"\nA sample from Python, {options.rounds} rounds, {machine()}.\n")
    print(markdown(["way", "us a call", "over rounds", "GB/s a process"], body))
    write("cache", rows)
    print()
    print(summary(rows))


if __name__ == "__main__":
    try:
        main()
    except BenchFailed as failed:
        sys.exit(f"bench-cache: {failed}")
