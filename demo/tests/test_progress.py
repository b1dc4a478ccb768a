"""What takes minutes shows that it goes on, on a terminal and without one."""

import os
import pty
import subprocess
from pathlib import Path

PROGRESS = Path(__file__).parents[2] / "scripts" / "progress.sh"


def test_without_a_terminal_the_last_line_is_printed_now_and_then(tmp_path):
    # Time passes quickly here: the command ends once its last line was printed.
    (tmp_path / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.05\n")
    (tmp_path / "sleep").chmod(0o755)
    script = "echo first; echo second; until grep -q second progress; do /bin/sleep 0.02; done; echo third"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with open(tmp_path / "progress", "w") as progress:
        done = subprocess.run([PROGRESS, "build", "sh", "-c", script], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=progress)
    lines = (tmp_path / "progress").read_text().splitlines()
    assert done.returncode == 0 and done.stdout == b""
    assert lines and all(line.startswith("build: after ") for line in lines)
    assert "second" in "".join(lines) and "first" not in "".join(lines)


def test_what_fails_is_shown_whole_and_fails(tmp_path):
    done = subprocess.run([PROGRESS, "build", "sh", "-c", "echo one; echo two >&2; exit 7"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "one\ntwo\n")


def test_on_a_terminal_the_command_shows_its_own_progress():
    ours, theirs = pty.openpty()
    command = [PROGRESS, "build", "sh", "-c", "test -t 1 && test -t 2 && echo drawn"]
    assert subprocess.run(command, stderr=theirs, stdout=subprocess.DEVNULL).returncode == 0
    assert os.read(ours, 100).strip() == b"drawn"
