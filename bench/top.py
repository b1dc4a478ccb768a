"""`make bench-top`: what watching costs: `stallscope top` on a running job of 64 ranks with 8 workers each.

The job is synthetic (bench/swarm); `top` runs in a terminal of its own of 200 x 60, as it would over ssh. htop, which
reads no recording but looks at the same processes, is the baseline.
"""

import argparse
import fcntl
import os
import pty
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass

from table import ROOT, Row, markdown, summary, write

STALLSCOPE = ROOT / "target" / "release" / "stallscope"
SWARM = ROOT / "target" / "release" / "swarm"
RECORDING = ROOT / "target" / "bench" / "top.stall"
RUNTIME = ROOT / "target" / "bench" / "top-runtime"
TICKS = os.sysconf("SC_CLK_TCK")
LINES, COLUMNS = 60, 200
# What has to be on the screen for a frame to count: figures of the job, which only stand where there are some.
MEANS_JOB = [b"Ranks", b"samples/s", b"where time goes"]
MEANS_JOBS = [b"WHERE TIME GOES", b"running"]
MEANS_HTOP = [b"CPU%"]
MAX_CORE_PERCENT, MAX_FIRST_MS = 1, 100
STARTS = 5


@dataclass
class Watched:
    first_ms: float
    core_percent: float
    rss_mb: float
    frames: int


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, command: list[str]):
        self.started = time.monotonic()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8", STALLSCOPE_RUNTIME_DIR=str(RUNTIME))
            os.execvp(command[0], command)
        self.seen = b""

    def read(self, seconds: float) -> int:
        """Takes what comes within that time; how often something came."""
        count, deadline = 0, time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self.master], [], [], left)[0]:
                break
            try:
                self.seen += os.read(self.master, 1 << 20)
            except OSError:
                sys.exit(f"bench-top: the watcher ended early: {self.seen[-400:].decode(errors='replace')}")
            count += 1
        return count

    def first_frame(self, means: list[bytes]) -> float:
        """Milliseconds until all of that is on the screen."""
        while not all(text in self.seen for text in means):
            if time.monotonic() - self.started > 30:
                sys.exit(f"bench-top: {means} never came to the screen")
            self.read(0.001)
        return 1000 * (time.monotonic() - self.started)

    def quit(self):
        os.write(self.master, b"q")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                self.read(0.05)
            except SystemExit:
                pass
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                os.close(self.master)
                return
        os.kill(self.pid, signal.SIGKILL)
        sys.exit("bench-top: the watcher did not quit")


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as status:
        return int(status.read().split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def watch(command: list[str], means: list[bytes], seconds: float) -> Watched:
    terminal = Terminal(command)
    first_ms = terminal.first_frame(means)
    # What opening costs is the first frame's; this is what staying costs.
    terminal.read(2)
    terminal.seen = b""
    cpu, start = cpu_seconds(terminal.pid), time.monotonic()
    frames = terminal.read(seconds)
    core_percent = 100 * (cpu_seconds(terminal.pid) - cpu) / (time.monotonic() - start)
    watched = Watched(first_ms, core_percent, rss_mb(terminal.pid), frames)
    terminal.quit()
    return watched


def first_frames(command: list[str], means: list[bytes]) -> list[float]:
    times = []
    for _ in range(STARTS):
        terminal = Terminal(command)
        times.append(terminal.first_frame(means))
        terminal.quit()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="to watch for")
    parser.add_argument("--settle", type=float, default=20, help="seconds the job runs before")
    options = parser.parse_args()
    if missing := [str(path) for path in (STALLSCOPE, SWARM) if not path.exists()]:
        sys.exit(f"bench-top: {' and '.join(missing)} not built; run `make build` first")
    if not shutil.which("htop"):
        sys.exit("bench-top: no htop, which is the baseline; `apt-get install htop` gets it")
    RUNTIME.mkdir(parents=True, exist_ok=True)
    for old in RECORDING.parent.glob("top.stall*"):
        old.unlink()
    length = options.settle + 3 * options.seconds + 40
    job = [str(SWARM), "--ranks", "64", "--workers", "8", "--hz", "10", "--seconds", str(length)]
    run = subprocess.Popen(
        [str(STALLSCOPE), "run", "--quiet", "--no-kernel", "-o", str(RECORDING), "--", *job],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"STALLSCOPE_RUNTIME_DIR": str(RUNTIME)},
    )
    try:
        time.sleep(options.settle)
        top = [str(STALLSCOPE), "top", "swarm"]
        firsts = first_frames(top, MEANS_JOB)
        job_view = watch(top, MEANS_JOB, options.seconds)
        list_view = watch([str(STALLSCOPE), "top"], MEANS_JOBS, options.seconds)
        htop = watch(["htop", "-d", "10"], MEANS_HTOP, options.seconds)
    finally:
        run.terminate()
        run.wait()
    first_ms = statistics.median(firsts + [job_view.first_ms])
    case = "64 ranks x 8 workers"
    rows = [
        Row(case, "job view", job_view.core_percent, "% of a core", f"<= {MAX_CORE_PERCENT}%", job_view.core_percent <= MAX_CORE_PERCENT),
        Row(case, "all jobs", list_view.core_percent, "% of a core", f"<= {MAX_CORE_PERCENT}%", list_view.core_percent <= MAX_CORE_PERCENT),
        Row(case, "first frame, median", first_ms, "ms", f"< {MAX_FIRST_MS} ms", first_ms < MAX_FIRST_MS),
        Row(case, "first frame, slowest", max(firsts), "ms"),
        Row(case, "memory", job_view.rss_mb, "MB"),
        Row(case, "htop, once a second", htop.core_percent, "% of a core"),
        Row(case, "htop, first frame", htop.first_ms, "ms"),
    ]
    lines = [
        [name, f"{seen.core_percent:.2f}%", f"{first:.0f} ms", f"{seen.rss_mb:.0f}", f"{seen.frames}"]
        for name, seen, first in [("top, job view", job_view, first_ms), ("top, all jobs", list_view, list_view.first_ms), ("htop, once a second", htop, htop.first_ms)]
    ]
    print(markdown(["watcher", "of a core", "first frame", "MB at most", "writes"], lines))
    print()
    print(summary(rows))
    print(f"Written to {write('top', rows)}")


if __name__ == "__main__":
    main()
