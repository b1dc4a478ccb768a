"""Kills a training job at random moments and has it go on, until it is done: `make demo CKPT=1`.

The job takes checkpoints every few seconds, within a budget. It runs once in peace and without any checkpoint, and then as
often as it is killed. Exits with 1 where the two do not end bit-identically, or where checkpoints cost more than the
budget and one checkpoint.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = ROOT / "target" / "demo" / "killed"
STALLSCOPE = ROOT / "target" / "release" / "stallscope"
# So long a life waits for its first checkpoint before it is killed all the same.
PATIENCE_S = 20.0


def say(text):
    print(f"demo: {text}", file=sys.stderr, flush=True)


class Run:
    """The job under `stallscope run`."""

    def __init__(self, name, steps, more=()):
        self.recording = HERE / f"{name}.stall"
        job = [sys.executable, ROOT / "demo" / "killed_job.py", "--steps", str(steps), *more]
        # One screen at the end is enough; what each life's has is in its recording.
        with open(HERE / f"{name}.log", "w") as log:
            command = [STALLSCOPE, "run", "--name", name, "-o", self.recording, "--", *job]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def line(self):
        """The job's next line; None once it is gone."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return None

    def ended(self):
        self.process.stdout.read()
        return self.process.wait()


def committed(folder):
    return {manifest.parent.name for manifest in folder.glob("step-*/manifest.json")}


def live(number, steps, folder, options, kill_at):
    """One life of the job: its last line, None where it was killed. `kill_at(left)`: seconds behind its first
    checkpoint, where so many steps were left at its beginning; None: it is not killed."""
    before = committed(folder)
    more = ["--checkpoints", folder, "--overhead", str(options.overhead), "--mtbf", options.mtbf]
    run = Run(f"life-{number}", steps, more)
    begun = run.line()
    if begun is None:
        run.ended()
        sys.exit(f"demo: the job did not start; see {HERE}/life-{number}.log")
    result = None
    kill_after_s = kill_at(steps - begun["from"])
    if kill_after_s is not None:
        until = time.monotonic() + PATIENCE_S
        while committed(folder) <= before and time.monotonic() < until and run.process.poll() is None:
            time.sleep(0.02)
        try:
            run.process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            subprocess.run(["kill", "-KILL", str(begun["pid"])], check=False)
    result = run.line()
    code = run.ended()
    if result is None and code != 128 + signal.SIGKILL:
        sys.exit(f"demo: the job ended with {code}; see {HERE}/life-{number}.log")
    say(f"life {number}: from step {begun['from']}, " + ("killed" if result is None else "to the end"))
    return result, run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--overhead", type=float, default=0.05, help="the budget, a part of the time")
    parser.add_argument("--mtbf", default="10s")
    parser.add_argument("--seed", type=int, help="of the moments at which it is killed")
    options = parser.parse_args()
    shutil.rmtree(HERE, ignore_errors=True)
    folder = HERE / "checkpoints"
    folder.mkdir(parents=True)
    moments = random.Random(options.seed)

    say(f"3 of 4: {options.steps} steps in peace, without checkpoints")
    peace = Run("peace", options.steps)
    peace.line()
    began_s = time.monotonic()
    whole = peace.line()
    step_s = (time.monotonic() - began_s) / options.steps
    if peace.ended() != 0 or whole is None:
        sys.exit(f"demo: the job failed; see {HERE}/peace.log")

    budget = f"at most {options.overhead:.0%} of the time for them"
    say(f"4 of 4: the same with checkpoints, {budget}, and SIGKILL {options.kills} times")
    kills, result = 0, None
    while result is None:
        to_come = options.kills - kills

        def kill_at(left):
            # Early enough that the job is not done before the last one.
            return moments.uniform(0.0, min(3.0, left * step_s / (to_come + 1))) if to_come else None  # noqa: B023

        result, run = live(kills + 1, options.steps, folder, options, kill_at)
        kills += result is None
    subprocess.run([STALLSCOPE, "ckpt", "ls", folder], check=True)
    subprocess.run([STALLSCOPE, "report", run.recording], check=True, stderr=subprocess.DEVNULL)

    newest = max(folder.glob("step-*/manifest.json"), key=lambda path: path.stat().st_mtime)
    begun = json.loads(newest.read_text())["content"]["sequence"]
    costs, same = result["costs"], {what: result["digests"][what] == value for what, value in whole["digests"].items()}
    for what, value in whole["digests"].items():
        print(f"{what:<11} {value[:16]} in peace, {result['digests'][what][:16]} killed {kills} times")
    overhead = costs["spent"] / costs["trained"]
    held = costs["spent"] <= options.overhead * costs["trained"] + costs["save"]
    print(
        f"{kills} kills, {begun} checkpoints begun, one takes {costs['save'] * 1e3:.0f} ms of training's time; all of them "
        f"{overhead:.2%} of {costs['trained']:.0f} s, of a budget of {options.overhead:.0%}"
    )
    print("bit-identical" if all(same.values()) else "NOT IDENTICAL: " + ", ".join(what for what in same if not same[what]))
    if not held:
        print("checkpoints cost more than the budget and one checkpoint")
    sys.exit(0 if all(same.values()) and held else 1)


if __name__ == "__main__":
    main()
