"""The demo of checkpoints in small: a job that is killed twice ends as the one that nobody killed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_killed_job_ends_bit_identically_and_within_its_budget():
    if not (ROOT / "target" / "release" / "stallscope").exists():
        pytest.skip("SKIPPED: target/release/stallscope is not built; `make build` does")
    command = [sys.executable, ROOT / "demo" / "killed.py", "--steps", "120", "--kills", "2", "--overhead", "0.2", "--mtbf", "2s"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nbit-identical\n" in done.stdout
    # A machine may stop the one who kills for so long that the job is done before the second time.
    kills = done.stderr.count(", killed")
    assert kills >= 1 and f"{kills} kills, " in done.stdout and "of a budget of 20%" in done.stdout
    # The report wraps its lines.
    report = " ".join(done.stdout.partition("Checkpoints ")[2].split())
    assert "of a budget of 20.0%" in report, "the report shows the cost beside the budget"
    for life in range(1, kills + 2):
        assert f"demo: life {life}: from step " in done.stderr
