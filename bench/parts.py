"""What single events cost, measured by programs of those who know them; each reports rows of JSON."""

import json
import subprocess
import sys

from table import ROOT, Row, markdown

SHIM_REPORT = ROOT / "target" / "bench" / "shim.json"
SYSCALL = ["cargo", "run", "--release", "--quiet", "-p", "stallscope-ebpf", "--example", "syscall_cost"]
SAMPLE = [sys.executable, str(ROOT / "probe" / "python" / "bench_shim.py"), "--json", str(SHIM_REPORT)]


def measure_parts() -> tuple[list[Row], list[str]]:
    """Prints a table of each; all rows, and a sentence for each part that failed."""
    rows, failures = [], []
    for what, measure in [("a syscall", syscall_rows), ("a sample", sample_rows)]:
        try:
            found = measure()
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
            failures.append(f"what watching costs {what}: {error}")
            continue
        print(f"\nWhat watching costs {what}:\n")
        body = [
            [f"{row.case}: {row.metric}", f"{row.value:.1f} {row.unit}", row.bar or "-", {None: "", True: "yes", False: "no"}[row.holds]]
            for row in found
        ]
        print(markdown(["case", "figure", "bar", "holds"], body), flush=True)
        rows += found
    return rows, failures


def syscall_rows() -> list[Row]:
    return converted(output_of(SYSCALL))


def sample_rows() -> list[Row]:
    SHIM_REPORT.unlink(missing_ok=True)
    output = output_of(SAMPLE)
    if not SHIM_REPORT.exists():
        raise ValueError(output.strip()[-800:] or "no report was written")
    return converted(SHIM_REPORT.read_text())


def output_of(command: list[str]) -> str:
    """What a program prints. A missed bar makes it fail as well, so that only its report tells the two apart."""
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0 and not done.stdout.strip():
        raise ValueError(done.stderr.strip()[-800:])
    return done.stdout


def converted(report: str) -> list[Row]:
    """The rows of a report whose bars are upper limits. Raises ValueError, KeyError."""
    return [
        Row(
            row["case"],
            row["metric"],
            row["value"],
            row["unit"],
            None if row["bar"] is None else f"<= {row['bar']:g} {row['unit']}",
            # A figure without a bar is only shown.
            None if row["bar"] is None else row["holds"],
        )
        for row in json.loads(report)["rows"]
    ]
