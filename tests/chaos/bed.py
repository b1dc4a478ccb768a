"""One run of the job with everything of ours around it, and what has to hold of it in the end."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAM = os.environ.get("STALLSCOPE_PROGRAM", str(ROOT / "target/release/stallscope"))
PACKAGE = os.environ.get("STALLSCOPE_PYTHON", str(ROOT / "target/python"))
# Beyond it something hangs. A run takes some seconds.
HANGS_S = 240.0


class Broken(AssertionError):
    """Something that has to hold does not."""


@dataclass
class Outcome:
    fault: str
    strikes: int = 0
    batches: int = 0
    seen: int = 0
    """Steps in the recordings of the job's collectors."""
    lost: dict = field(default_factory=dict)
    """By reason, as the recordings count it."""
    collectors: int = 0
    wall_s: float = 0.0
    notes: list = field(default_factory=list)


def processes():
    """Every process as (pid, parent, name, command line, state)."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            name, rest = stat.split("(", 1)[1].rsplit(")", 1)
            yield int(entry), int(rest.split()[1]), name, command, rest.split()[0]


class Bed:
    def __init__(self, fault, seed, steps):
        self.random = random.Random(seed)
        self.steps = steps
        # A short path, as sockets' are limited.
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.outcome = Outcome(fault)
        self.env = {
            **os.environ,
            "STALLSCOPE_RUNTIME_DIR": str(self.folder / "run"),
            "STALLSCOPE_KERNEL_SOCKET": str(self.folder / "kernel.sock"),
            "STALLSCOPE_PYTHON": PACKAGE,
            "STALLSCOPE_POOL_LINGER_MS": "200",
            # It has the job train until something has happened.
            "CHAOS": fault,
        }
        self.is_root = os.geteuid() == 0
        self.own = []
        self.recordings = []
        self.recordings_in = self.folder
        self.node = self.run = self.job = None
        self.surely_measured = True
        self.clean_up = []

    # What faults are made of.

    def start(self, launcher=(), launcher_of_job=(), **environment):
        """Starts the node's collector where this is root, and the job under `run`, and waits for its first batch.

        The collectors are started by the command `launcher`, where one is given, and the job by that of its own."""
        self.env.update(environment)
        self.begun = time.monotonic()
        if self.is_root:
            self.start_node(launcher)
        recording = self.recording()
        words = [PROGRAM, "run", "--quiet", "--name", "chaos", "-o", recording, "--"]
        job = [*launcher_of_job, sys.executable, HERE / "job.py", self.folder, self.steps]
        self.run = self.spawn([*launcher, *words, *job])
        while not (self.folder / "begun").exists() and self.is_training():
            time.sleep(0.02)
        self.job = self.pid_of_job()

    def start_node(self, launcher=()):
        self.node = self.spawn([*launcher, PROGRAM, "collect", "--socket", self.folder / "kernel.sock"])
        self.wait_for(lambda: (self.folder / "kernel.sock").exists() or self.node.poll() is not None)

    def take_over(self):
        """A new collector takes the place of the job's that is gone."""
        if self.job and self.is_training():
            self.run = self.spawn([PROGRAM, "attach", "--quiet", "--no-syscalls", "-o", self.recording(), self.job])

    def tune(self):
        """A client that turns the job's knobs."""
        return self.spawn([PROGRAM, "tune", "chaos", "--act"])

    def spawn(self, words):
        printed = open(self.folder / f"printed-{len(self.own)}", "w+")
        one = subprocess.Popen(
            [str(word) for word in words], env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed
        )
        self.own.append(one)
        return one

    def recording(self):
        self.recordings.append(self.recordings_in / f"part-{len(self.recordings)}.stall")
        return self.recordings[-1]

    def sleep(self, least_s, most_s=None):
        """Some time within these bounds; whether the job trains still."""
        until = time.monotonic() + self.random.uniform(least_s, most_s or least_s)
        while time.monotonic() < until and self.is_training():
            time.sleep(0.005)
        return self.is_training()

    def is_training(self):
        if time.monotonic() - self.begun > HANGS_S:
            raise Broken(f"the job hangs: {self.printed()}")
        if self.outcome.strikes:
            (self.folder / "struck").touch()
        if (self.folder / "result.json").exists():
            return False
        return self.job_is_there() if self.job else self.run.poll() is None

    def ours(self):
        """Every process of ours that is there: (what it is, pid)."""
        found = [("the node's collector", self.node), ("the job's collector", self.run)]
        pids = [(what, one.pid) for what, one in found if one is not None and one.poll() is None]
        tree = {self.job}
        known = sorted(processes())
        for _ in range(3):
            tree |= {pid for pid, parent, *_ in known if parent in tree}
        names = {"stallscope-ahead": "a fetcher", "stallscope-fork": "the fork server"}
        for pid, _, name, command, state in known:
            if state == "Z":
                continue
            if "_pool.py" in command and str(self.folder) in command:
                pids.append(("the pool", pid))
            elif name in names and pid in tree:
                pids.append((names[name], pid))
        return pids

    def pid(self, what):
        return next((pid for name, pid in self.ours() if name == what), None)

    def signal(self, pid, number):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, TypeError):
            return
        self.outcome.strikes += 1

    def pid_of_job(self):
        started = [one for one in processes() if one[1] == self.run.pid and "job.py" in one[3]]
        # The witnesses of signals have the command line of `run`.
        return next((pid for pid, _, name, *_ in started if name != "signal-witness"), None)

    def job_is_there(self):
        try:
            return Path(f"/proc/{self.job}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def wait_for(self, condition, what="it never came"):
        until = time.monotonic() + HANGS_S
        while not condition():
            if time.monotonic() > until:
                raise Broken(f"{what}: {self.printed()}")
            time.sleep(0.01)

    def printed(self):
        return " | ".join(path.read_text(errors="replace")[-400:] for path in sorted(self.folder.glob("printed-*")))

    # The end.

    def finish(self, expected):
        """Waits for the ends of all, and asserts what has to hold. `expected`: the digest of a run that nobody disturbed."""
        outcome = self.outcome
        self.wait_for(lambda: not self.is_training())
        if not (self.folder / "result.json").exists():
            raise Broken(f"the job failed: {self.printed()}")
        result = json.loads((self.folder / "result.json").read_text())
        outcome.wall_s = time.monotonic() - self.begun
        outcome.batches = result["batches"]
        if result["digest"] != expected:
            raise Broken("the job computed something else")
        self.wait_for(lambda: self.run.poll() is not None, "the job's collector does not end")
        if self.node is not None and self.node.poll() is None:
            self.node.terminate()
            self.wait_for(lambda: self.node.poll() is not None, "the node's collector does not end")
        self.wait_for(lambda: not [what for what, _ in self.ours()], f"something is left: {self.ours()}")
        self.count()
        return outcome

    def count(self):
        """What the recordings have, and whether what they lack is counted in them."""
        for recording in self.recordings:
            if not recording.exists():
                continue
            report = subprocess.run([PROGRAM, "report", recording, "--format", "json"], env=self.env, capture_output=True, text=True)
            if report.returncode != 0:
                if recording.stat().st_size > 0 and len(self.recordings) == 1 and self.surely_measured:
                    raise Broken(f"a recording that cannot be read: {report.stderr}")
                self.outcome.notes.append("a recording that had just begun was empty")
                continue
            run = json.loads(report.stdout)
            self.outcome.collectors += 1
            self.outcome.seen += sum(phase["steps"] for phase in run["phases"] if phase["phase"] == "training")
            for loss in run["losses"]:
                self.outcome.lost[loss["reason"]] = self.outcome.lost.get(loss["reason"], 0) + loss["count"]
        seen, batches = self.outcome.seen, self.outcome.batches
        if seen > batches:
            raise Broken(f"{seen} of {batches} batches were recorded: some twice")
        # What a killed collector had taken and not yet written is gone with it, also where it was killed so late that none took
        # over; those that lived to the end account for all.
        lived = len(self.recordings) == 1 and self.run.returncode != -signal.SIGKILL
        if lived and self.surely_measured and seen < batches - 1 and not self.outcome.lost:
            raise Broken(f"{batches - seen} of {batches} batches are neither recorded nor counted as lost")

    def close(self):
        for one in self.own:
            if one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.kill()
            one.wait()
        for _, pid in self.ours() if self.job else ():
            os.kill(pid, signal.SIGKILL)
        if self.job and self.job_is_there():
            os.kill(self.job, signal.SIGKILL)
        for undo in reversed(self.clean_up):
            undo()
        shutil.rmtree(self.folder, ignore_errors=True)


def untouched(steps):
    """The digest of a run that has nothing of ours around it but what it imports itself."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        env = {**os.environ, "STALLSCOPE_PYTHON": PACKAGE, "STALLSCOPE_RUNTIME_DIR": f"{folder}/run"}
        env["STALLSCOPE_POOL_LINGER_MS"] = "200"
        done = subprocess.run(
            [sys.executable, HERE / "job.py", folder, str(steps)], env=env, capture_output=True, text=True, timeout=HANGS_S
        )
        if done.returncode:
            raise Broken(f"the job by itself failed: {done.stderr}")
        return json.loads(Path(folder, "result.json").read_text())["digest"]
