"""What the shim costs, in ns of CPU time: per sample, per event, per batch, beside a Unix datagram for the same event.

An event is one that Python code writes, by the same loop as the datagram.

usage: bench_shim.py [--pairs N] [--json FILE]     (after stage.sh; needs torch)

CPU time of the thread, because a busy machine distorts it least. Interleaved pairs in one run, medians over them; a table on the terminal, and JSON with --json. Fails when a bar does
not hold.
"""

import _io
import argparse
import builtins
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests"))

SAMPLES, BATCH, READS = 20_000, 50, 5_000
# Capacity for all that comes between two looks of a collector written in Python.
LANE_RECORDS = str(1 << 18)
# For it to catch up.
PAUSE_S = 0.1
BARS = {"sample": 150, "sample with wrapped open and read": 900, "event": 60}


class Files:
    """One small file, again and again."""

    def __init__(self, path):
        self.path = path

    def __getitem__(self, index):
        with open(self.path, "rb") as file:
            return file.read()


class Items:
    """As cheap as a data set gets: what is measured is the shim."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index


def loader_ns(loader):
    """One epoch."""
    began = time.thread_time_ns()
    for _ in loader:
        pass
    return time.thread_time_ns() - began


def measure(pairs):
    """Runs inside the job: the same loop through torch's fetcher, plain and timed."""
    import socket
    import threading

    from torch.utils.data._utils.fetch import _MapDatasetFetcher

    from stallscope import _native
    from stallscope._hooks import worker

    items = Items()
    indices = list(range(SAMPLES))
    plain = _MapDatasetFetcher(items, True, len, False)
    timed = _MapDatasetFetcher(items, True, len, False)
    producer = _native.Producer(0)
    worker._observe_guarded(timed, producer)

    listener, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)

    def swallow():
        while listener.recv(100):
            pass

    threading.Thread(target=swallow, daemon=True).start()
    payload = bytes(48)

    def fetch(fetcher):
        began = time.thread_time_ns()
        for at in range(0, SAMPLES, BATCH):
            fetcher.fetch(indices[at : at + BATCH])
        return (time.thread_time_ns() - began) / SAMPLES

    def events(action):
        began = time.thread_time_ns()
        for _ in range(SAMPLES):
            action()
        return (time.thread_time_ns() - began) / SAMPLES

    def datagram():
        try:
            sender.send(payload)
        except BlockingIOError:
            pass

    def nothing():
        pass

    def reads(fetcher):
        began = time.thread_time_ns()
        for at in range(0, READS, BATCH):
            fetcher.fetch(indices[at : at + BATCH])
        return (time.thread_time_ns() - began) / READS

    plain_open, timed_open = _io.open, builtins.open
    assert timed_open is not plain_open, "STALLSCOPE_OPENS is not set"
    file = tempfile.NamedTemporaryFile()
    file.write(bytes(15_000))
    file.flush()
    plain_files = _MapDatasetFetcher(Files(file.name), True, len, False)
    timed_files = _MapDatasetFetcher(Files(file.name), True, len, False)
    worker._observe_guarded(timed_files, producer)

    collective = _native.collective

    def event():
        collective(1, 2)

    rows = {name: [] for name in ("sample", "sample with wrapped open and read", "event", "event, native part", "datagram")}
    for _ in range(pairs + 1):
        time.sleep(PAUSE_S)
        base = fetch(plain)
        rows["sample"].append(fetch(timed) - base)
        builtins.open = plain_open
        base = reads(plain_files)
        builtins.open = timed_open
        rows["sample with wrapped open and read"].append(reads(timed_files) - base)
        time.sleep(PAUSE_S)
        rows["event, native part"].append(_native.bench_push(SAMPLES) / SAMPLES)
        time.sleep(PAUSE_S)
        empty = events(nothing)
        rows["event"].append(events(event) - empty)
        rows["datagram"].append(events(datagram) - empty)
    # The first round touches the lane's memory for the first time.
    return {name: values[1:] for name, values in rows.items()}


def batches(pairs):
    """ns more a batch of an in-process loader, by whole epochs."""
    from torch.utils.data import DataLoader

    loader = DataLoader(Items(), batch_size=1, collate_fn=len)
    loader_ns(loader)
    return [loader_ns(loader) / SAMPLES for _ in range(pairs)]


def child(what, pairs):
    import torch  # noqa: F401
    import torch.utils.data  # noqa: F401

    result = measure(pairs) if what == "costs" else {"batch": batches(pairs)}
    print(json.dumps(result))


def check(done):
    """A record that was dropped cost less than one that was written."""
    if done.code != 0:
        sys.exit(f"bench_shim.py: the measurement failed: {done.err}")
    dropped = sum(process.lane.dropped for process in done.collector.processes if process.lane)
    if dropped:
        sys.exit(f"bench_shim.py: the lane dropped {dropped} records; run it on a less busy machine.")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child, options.pairs)

    from collector import Process, run, run_plain

    # Millions of records that are kept make a collector written in Python too slow for the lane.
    Process.drain = lambda process: process.lane and process.lane.drain()

    command = [sys.executable, __file__, "--pairs", str(options.pairs), "--child"]
    costs = run([*command, "costs"], STALLSCOPE_OPENS="1", STALLSCOPE_LANE_RECORDS=LANE_RECORDS)
    check(costs)
    results = json.loads(costs.out)
    batch = []
    for _ in range(3):
        bare, shim = run_plain([*command, "batch"]), run([*command, "batch"], STALLSCOPE_LANE_RECORDS=LANE_RECORDS)
        check(shim)
        pair = [statistics.median(json.loads(done.out)["batch"]) for done in (bare, shim)]
        batch.append(pair[1] - pair[0])
    results["batch of one sample, in process"] = batch

    rows, failed, spreads = [], [], []
    for name, values in results.items():
        value, bar = statistics.median(values), BARS.get(name)
        holds = None if bar is None else value <= bar
        failed += [name] if holds is False else []
        spreads.append((min(values), max(values)))
        rows.append({"case": name, "metric": "time", "value": round(value, 1), "unit": "ns", "bar": bar, "holds": holds})
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}"
    report = {"name": "shim", "machine": machine, "rows": rows}
    print(f"{machine}; medians of {options.pairs} pairs\n")
    print("| case | ns | spread | bar | holds |\n|---|---|---|---|---|")
    for row, (low, high) in zip(rows, spreads):
        says = {None: "-", True: "yes", False: "NO"}[row["holds"]]
        print(f"| {row['case']} | {row['value']} | {low:.1f} to {high:.1f} | {row['bar'] or '-'} | {says} |")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1))
    return f"bench_shim.py: over the bar: {', '.join(failed)}" if failed else None


if __name__ == "__main__":
    sys.exit(main())
