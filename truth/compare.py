"""A recording beside the truth: by cause, in points of training time.

As a program: `compare.py FILE.stall LOGS` prints it as a table.
"""

import json
import sqlite3
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from account import CAUSES, Account


class NotComparable(Exception):
    """One sentence on why a recording says too little to be held against the truth."""


@dataclass
class Comparison:
    """Shares are percentages of the training time that the recording knows."""

    rank: int
    truth: dict[str, float]
    seen: dict[str, float]
    # Length of training in the recording, and in truth between the recording's first and last such step; ns.
    seen_ns: int
    truth_ns: int
    steps: int
    # Of a loop without a loader, all after the first; of one that takes batches for something else, those that it trains with;
    # None: the loader's batches are the steps.
    true_steps: int | None
    # Waits that the device did not feel: truth, and what was seen (None: no device was watched).
    true_hidden: float
    seen_hidden: float | None
    # Steps in which the state was saved, and saves beside the loop with the time that these took; ns.
    saves: int
    saves_beside: int
    saving_beside_ns: int

    def error(self, cause: str) -> float:
        return self.seen[cause] - self.truth[cause]

    @property
    def worst(self) -> tuple[str, float]:
        """The cause that is furthest off, and by how many points."""
        cause = max(CAUSES, key=lambda name: abs(self.error(name)))
        return cause, self.error(cause)

    @property
    def worst_blamed(self) -> tuple[str, float]:
        """The cause that more is blamed on than is true, the furthest: what is not known is missing elsewhere."""
        cause = max((name for name in CAUSES if name != "unknown"), key=self.error)
        return cause, self.error(cause)

    @property
    def phase_error(self) -> float:
        """By how many per cent the recording's training time differs from the true one."""
        return 100 * (self.seen_ns - self.truth_ns) / self.truth_ns


def compare(recording: Path, account: Account) -> list[Comparison]:
    """One comparison a rank. Raises NotComparable, sqlite3.Error."""
    rows = training_rows(recording)
    if not rows:
        raise NotComparable(f"{recording} holds no training step")
    ranks = account.ranks()
    return [compare_rank(rank, ranks[rank], [row for row in rows if row["rank"] == rank], account) for rank in ranks]


def compare_rank(rank: int, pid: int, rows: list[sqlite3.Row], account: Account) -> Comparison:
    if not rows:
        raise NotComparable(f"the recording holds no training step of rank {rank}")
    seen, truth, saves = Counter(), Counter(), 0
    for row in rows:
        seen.update({cause: row[f"{cause}_ns"] for cause in CAUSES})
        true = account.causes(pid, row["start_ns"], row["end_ns"])
        truth.update(true)
        saves += true["snapshot"] + true["persist"] > 0
        if sum(row[f"{cause}_ns"] for cause in CAUSES) != row["end_ns"] - row["start_ns"]:
            raise NotComparable(f"the causes of step {row['idx']} of rank {rank} do not add up to its wall time")
    wall_ns = sum(row["end_ns"] - row["start_ns"] for row in rows)
    first_ns, last_ns = min(row["start_ns"] for row in rows), max(row["end_ns"] for row in rows)
    true_ns = sum(
        max(0, min(end, last_ns) - max(start, first_ns)) for start, end in account.training(pid)
    )
    if true_ns == 0:
        raise NotComparable(f"what the recording calls training of rank {rank} is none")
    hidden = [row["hidden_ns"] for row in rows if row["hidden_ns"] is not None]
    beside = account.saves_beside()
    return Comparison(
        rank,
        {cause: 100 * truth[cause] / wall_ns for cause in CAUSES},
        {cause: 100 * seen[cause] / wall_ns for cause in CAUSES},
        wall_ns,
        true_ns,
        len(rows),
        max(0, len(account.loop_steps(pid)) - 1) or account.batches_trained(pid),
        100 * sum(account.hidden_ns(pid, row["start_ns"], row["end_ns"]) for row in rows) / wall_ns,
        100 * sum(hidden) / wall_ns if hidden else None,
        saves,
        len(beside),
        sum(end - start for start, end in beside),
    )


def compare_main_thread(recording: Path, account: Account) -> Comparison:
    """Without steps: what the main thread did all the time it was looked at. Raises NotComparable, sqlite3.Error."""
    main = json.loads(query(recording, "SELECT json FROM summary")[0]["json"])["main_threads"]
    [(rank, pid)] = account.ranks().items()
    if main["count"] != 1 or main["pid"] != pid:
        raise NotComparable(f"{recording} tells of other main threads than that of {pid}: {main}")
    parts = {
        "compute": ["cpu"],
        "preempted": ["runnable"],
        "fetch": ["files", "faults", "sockets", "pipes", "readers"],
        "persist": ["writes"],
        "unknown": ["locks", "sleeps", "other"],
    }
    seen = Counter({cause: sum(main[f"{part}_ns"] for part in parts) for cause, parts in parts.items()})
    wall_ns = main["wall_ns"]
    truth = account.causes(pid, main["start_ns"], main["start_ns"] + wall_ns)
    shares = [{cause: 100 * causes[cause] / wall_ns for cause in CAUSES} for causes in (truth, seen)]
    return Comparison(rank, *shares, wall_ns, wall_ns, 0, None, 0, None, 0, 0, 0)


def training_rows(recording: Path) -> list[sqlite3.Row]:
    return query(recording, "SELECT * FROM step WHERE phase = 'training' ORDER BY start_ns")


def query(recording: Path, question: str) -> list[sqlite3.Row]:
    connection = sqlite3.connect(f"file:{recording}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for found in compare(Path(sys.argv[1]), Account.of_folder(Path(sys.argv[2]))):
        print(f"rank {found.rank}: {found.steps} steps, {found.seen_ns / 1e9:.2f} s, phases {found.phase_error:+.2f}%")
        for cause in CAUSES:
            print(f"{cause:>10} {found.truth[cause]:7.2f} {found.seen[cause]:7.2f} {found.error(cause):+7.2f}")


if __name__ == "__main__":
    main()
