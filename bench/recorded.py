"""Writes how a recording's training batches were made, as rows that the simulator of `make bench-control` replays.

    bench/recorded.py FILE.stall > bench/control/recorded/NAME.csv

Of each batch: its samples, how long its worker was blocked in reads, the worker's CPU time, and training's own work on
a batch, each in the order of the recording. Waits for a CPU are left out: the simulator has cores of its own.
"""

import argparse
import sqlite3
import sys
from pathlib import Path


def rows(recording: Path) -> list[tuple[int, float, float, float]]:
    connection = sqlite3.connect(f"file:{recording}?mode=ro", uri=True)
    where = "phase = 'training' AND merged = 1"
    loader = connection.execute(f"SELECT loader FROM step WHERE {where} GROUP BY loader ORDER BY count(*) DESC").fetchone()
    if loader is None:
        sys.exit(f"{recording} has no training steps one by one; record a shorter run")
    steps = connection.execute(f"SELECT compute_ns FROM step WHERE {where} AND loader = ? ORDER BY end_ns", loader)
    made = connection.execute(
        "SELECT samples, fetch_ns, cpu_ns FROM batch_service WHERE loader = ? AND weight <= 1 ORDER BY ready_ns", loader
    )
    return [(samples, fetch, cpu, own) for (samples, fetch, cpu), (own,) in zip(made, steps)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path)
    found = rows(parser.parse_args().recording)
    if not found:
        sys.exit("the recording does not tell how single batches were made; it takes the shim of `stallscope run`")
    print("samples,fetch_ms,cpu_ms,compute_ms")
    for samples, *times in found:
        print(samples, *(f"{ns / 1e6:.1f}" for ns in times), sep=",")


if __name__ == "__main__":
    main()
