"""How long training waited for data in its first and its last 20 seconds, from the recording of a run."""

import sqlite3
import sys

SPAN_NS = 20e9
WAITS = "fetch_ns + prep_ns + starved_ns + transfer_ns"


def share(recording: sqlite3.Connection, where: str, moment: float) -> float:
    waited, wall = recording.execute(
        f"SELECT sum({WAITS}), sum(end_ns - start_ns) FROM step WHERE phase = 'training' AND {where}", [moment]
    ).fetchone()
    return waited / wall


def main():
    recording = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
    first, last = recording.execute("SELECT min(start_ns), max(end_ns) FROM step WHERE phase = 'training'").fetchone()
    before = share(recording, "end_ns <= ?", first + SPAN_NS)
    after = share(recording, "start_ns >= ?", last - SPAN_NS)
    print(f"demo: training waited for data {before:.0%} of its first 20 seconds, and {after:.0%} of its last 20")


if __name__ == "__main__":
    main()
