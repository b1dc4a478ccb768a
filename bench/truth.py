"""`make bench-truth`: what stallscope says of jobs that know the truth. Needs root.

Each job is measured by `stallscope run` (kernel and shim) and by `stallscope attach` (kernel alone), some by `run
--no-kernel` (the shim alone), the first one also with and without syscall hooks, and compared with its own account of the
same training steps.
"""

import argparse
import sys
from dataclasses import dataclass

import torch
from table import ROOT, Row, markdown, summary, write

sys.path.insert(0, str(ROOT / "truth"))

from account import CAUSES  # noqa: E402
from cases import CASES, Case  # noqa: E402
from compare import Comparison, NotComparable  # noqa: E402
from run import Bench, JobFailed, Outcome  # noqa: E402
from storage import StorageError  # noqa: E402
from verdicts import complaint, is_decided  # noqa: E402


@dataclass
class Way:
    """A way of measuring a job."""

    name: str
    attach: bool
    options: tuple[str, ...] = ()

    def bar(self, case: Case) -> float | None:
        if self is ALONE:
            return case.alone_bar
        return case.kernel_bar if self.attach else case.shim_bar

    def worst(self, case: Case, found: Comparison) -> tuple[str, float]:
        return found.worst_blamed if self is ALONE and case.alone_may_not_know else found.worst

    def measure(self, bench: Bench, case: Case) -> Outcome:
        return (bench.attach if self.attach else bench.run)(case, *self.options)


ALONE = Way("shim", False, ("--no-kernel",))
BOTH = [Way("kernel + shim", False), Way("kernel", True)]
HOOKS = [Way("kernel + shim, syscall hooks", False, ("--syscalls",)), Way("kernel, no syscall hooks", True, ("--no-syscalls",))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="names of truth jobs; all by default")
    parser.add_argument("--seconds", type=float, default=10, help="of training a job")
    parser.add_argument("--hooks", action="store_true", help="each with and without syscall hooks, not the first alone")
    names = [way.name for way in [*BOTH, ALONE, *HOOKS]]
    parser.add_argument("--evidence", choices=names, help="only this one")
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.cases or case.name in options.cases]
    if unknown := set(options.cases) - {case.name for case in chosen}:
        sys.exit(f"there is no truth job called {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in CASES)}")
    table = Table()
    try:
        with Bench(options.seconds) as bench:
            for case in chosen:
                if case.gpu and not torch.cuda.is_available():
                    print(f"{case.name}: NOT MEASURED, there is no GPU here", flush=True)
                    continue
                for way in ways(case, options.hooks):
                    if options.evidence in (None, way.name):
                        table.measure(bench, case, way)
    except StorageError as error:
        sys.exit(f"bench-truth: {error}")
    print("\nPer cent of training time, truth/seen:\n")
    print(table)
    print()
    print(summary(table.rows))
    print(f"Written to {write('truth', table.rows)}")
    sys.exit(1 if table.failures else 0)


def ways(case: Case, hooks: bool) -> list[Way]:
    chosen = [*BOTH, *([ALONE] if case.alone_bar else []), *(HOOKS if hooks or case is CASES[0] else [])]
    return [way for way in chosen if not (way.attach and case.withheld)]


class Table:
    """Gathers figures, and prints each as it comes."""

    def __init__(self):
        self.rows: list[Row] = []
        self.lines: list[list[str]] = []
        self.failures = 0

    def __str__(self) -> str:
        return markdown(["case", "evidence", *CAUSES, "max error", "bar", "holds", "phases"], self.lines)

    def measure(self, bench: Bench, case: Case, way: Way):
        try:
            outcome = way.measure(bench, case)
        except (JobFailed, NotComparable) as error:
            self.failures += 1
            bar = way.bar(case)
            self.lines.append([case.name, way.name, *([""] * len(CAUSES)), "not measured", str(bar or "-"), "no", ""])
            self.rows.append(Row(case.name, f"measured, {way.name}", 0, "", "1", False))
            print(f"{case.name} ({way.name}): {error}", flush=True)
            return
        for found in outcome.comparisons:
            self.add(case, way, found, len(outcome.comparisons) > 1)
        wrong = complaint(case, outcome, kernel=way is not ALONE)
        if not is_decided(case, outcome):
            wrong = "the job waited for data where it was made not to, or the other way round: run it again on a quiet machine"
        judged = case.no_stall or case.withheld or case.finding or case.slow_rank is not None or case.is_loop
        if way.attach and not case.is_loop:
            return
        if wrong:
            print(f"{case.name}: {wrong}", flush=True)
        if judged:
            self.rows.append(Row(case.name, f"right verdict, {way.name}", float(not wrong), "", "1", not wrong))

    def add(self, case: Case, way: Way, found: Comparison, several: bool):
        name = f"{case.name}, rank {found.rank}" if several else case.name
        cause, error = way.worst(case, found)
        bar = way.bar(case)
        holds = None if bar is None else abs(error) <= bar
        cells = [f"{found.truth[c]:.1f}/{found.seen[c]:.1f}" if max(found.truth[c], found.seen[c]) >= 0.05 else "" for c in CAUSES]
        verdict = "" if holds is None else "yes" if holds else "no"
        line = [name, way.name, *cells, f"{error:+.2f} {cause}", str(bar or "-"), verdict, f"{found.phase_error:+.1f}%"]
        self.lines.append(line)
        print(" | ".join(cell for cell in line if cell), flush=True)
        limit = None if bar is None else f"<= {bar:g}"
        self.rows.append(Row(name, f"max error, {way.name}", abs(error), "points", limit, holds))
        for one in CAUSES:
            self.rows.append(Row(name, f"{one} error, {way.name}", found.error(one), "points"))
        self.rows.append(Row(name, f"training time error, {way.name}", found.phase_error, "%"))
        if case.hidden_bar and not way.attach:
            seen = found.seen_hidden
            off = abs((seen or 0) - found.true_hidden)
            print(f"{name}: hidden {found.true_hidden:.1f}/{'not seen' if seen is None else f'{seen:.1f}'}", flush=True)
            holds = seen is not None and off <= case.hidden_bar
            self.rows.append(Row(name, f"hidden error, {way.name}", off, "points", f"<= {case.hidden_bar:g}", holds))


if __name__ == "__main__":
    main()
