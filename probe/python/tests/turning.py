"""Jobs that are turned while they run, from a collector's side."""

import json
import os
import random
import signal
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from collector import Collector, environment, popen, start_warm
from conftest import torch_version

JOB = Path(__file__).with_name("resizing.py")


class Turned:
    """A job that is turned while it runs: `turn(trainer)` is called again and again once its loader has given a
    batch."""

    def __init__(self, command, turn, before=(), limit_s=200, **more):
        self.collector = Collector()
        self.states = set()
        env = environment(self.collector.path, **more)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            command = [*before, *(str(part) for part in command)]
            self.job = (popen if before else start_warm)(command, env, out, err, start_new_session=True)
            deadline = time.monotonic() + limit_s
            try:
                while self.job.poll() is None:
                    assert time.monotonic() < deadline, "the job hangs"
                    self.collector.serve_once(0.008)
                    self.look(turn)
            finally:
                if self.job.poll() is None:
                    os.killpg(self.job.pid, signal.SIGKILL)
                    self.job.wait()
                self.group_is_gone = gone(self.job.pid)
                while self.collector.serve_once(0.1):
                    pass
                for process in self.collector.processes:
                    process.drain()
                # One that was refused before its greeting.
                self.collector.processes = [p for p in self.collector.processes if p.greeting]
                out.seek(0)
                err.seek(0)
                self.code, self.err = self.job.returncode, err.read()
                self.lines = [json.loads(line) for line in out.read().splitlines() if line.startswith('{"')]
        self.trainer = self.collector.trainer()

    def look(self, turn):
        trainers = [p for p in self.collector.processes if p.greeting and p.kind == "trainer"]
        if not trainers or not trainers[0].of("Wait"):
            return
        for (name, loader), knob in trainers[0].knobs().items():
            if knob["available"]:
                value, state = trainers[0].standing(name, loader)
                self.states.add((name, loader, value, state, knob["reason"]))
        turn(trainers[0])

    def was(self, name, value, state, loader=0):
        return any((name, loader, value, state) == known[:4] for known in self.states)

    def reasons(self, name, state, loader=0):
        """Reasons seen beside this state. A state is in the page before its reason is in the socket, so that an earlier
        reason may be among them."""
        return {known[4] for known in self.states if (name, loader, state) == (known[0], known[1], known[3])}

    def of(self, scenario):
        """What this scenario printed, and which children it left behind."""
        *lines, end = self._printed(scenario)
        return lines, end["left"]

    def descriptors_after(self, scenario):
        """How many the job had once the scenario's workers were gone."""
        return self._printed(scenario)[-1]["descriptors"]

    def _printed(self, scenario):
        lines = [line for line in self.lines if line["scenario"] == scenario]
        assert lines, self.err
        return lines


def gone(group, limit_s=100):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def at_random(changes, most_workers=4, most_batches=50, gap_s=0.008):
    """So many changes at any moment, of both knobs of the loader that gave the last batch."""
    chance, state = random.Random(3), {"left": changes, "at": 0.0}

    def turn(trainer):
        if not state["left"] or time.monotonic() - state["at"] < gap_s:
            return
        loader = trainer.of("Wait")[-1].loader
        knobs = trainer.knobs()
        available = [name for name in ("prefetch", "workers") if knobs.get((name, loader), {}).get("available")]
        if available:
            name = chance.choice(available)
            # Workers take a while to come and go, and most of them may.
            coming = name == "workers" and trainer.standing(name, loader)[1] in ("waiting", "pending")
            if coming and chance.random() < 0.97:
                name = "prefetch"
            trainer.ask(name, chance.randint(1, most_workers if name == "workers" else most_batches), loader)
            state["left"] -= 1
            state["at"] = time.monotonic()

    turn.state = state
    return turn


def once(*asked, loader=0, until=None):
    """Asks for each `(name, value)` as soon as the one before is answered for good. `until`: the folder in which the job
    looks for a file of the loader's number, to train fast from then on: it is made when all are answered."""
    waiting = list(asked)
    under_way = []
    looks = [0]

    def turn(trainer):
        if under_way and trainer.standing(*under_way[0])[1] in ("pending", "waiting"):
            looks[0] = 0
            return
        # So that an answer, and its reason, is seen before it makes way for the next.
        looks[0] += 1
        if under_way and looks[0] < 10:
            return
        under_way.clear()
        if waiting and (waiting[0][0], loader) in trainer.knobs():
            name, value = waiting.pop(0)
            trainer.ask(name, value, loader)
            under_way.append((name, loader))
        elif until and not waiting:
            (until / str(loader)).touch()

    return turn


def until_its_reason(name, value, reason, until, loader=0):
    """Asks once; the job trains slowly, as with `once`, until this reason was seen beside the state."""
    seen = []

    def turn(trainer):
        knob = trainer.knobs().get((name, loader))
        if not seen and knob:
            trainer.ask(name, value, loader)
            seen.append("asked")
        elif knob and reason in knob["reason"]:
            seen.append(reason)
            # The first look may have been at the state of before.
            if len(seen) == 3:
                (until / str(loader)).touch()

    return turn


def job(python, *scenarios, batches=200):
    return [python, JOB, batches, *scenarios]


def whole(batches=200):
    return list(range(2 * batches))


def old(python):
    return torch_version(python)[0].startswith("1.")


def pairs_are_right(done):
    """Each wait names the process that made its batch, also right after a worker's number went to another one."""
    made = {}
    for process in done.collector.processes:
        for batch in process.of("Batch"):
            made.setdefault((process.pid, batch.batch), []).append(batch)
    outcome = {pid for fact in done.trainer.facts_of("workers") for pid in fact["pids"]}
    waits = [wait for wait in done.trainer.of("Wait") if "failed" not in wait.flags]
    assert waits
    for wait in waits:
        assert wait.worker in outcome
        assert any(batch.time_ns <= wait.time_ns for batch in made[wait.worker, wait.batch])
    assert done.trainer.lane.dropped == 0
    assert all(process.facts_of("unavailable") == [] for process in done.collector.processes)
    return waits


def gives(done, scenario, results):
    lines, left = done.of(scenario)
    assert [line["got"] for line in lines] == results
    assert left == [] and done.descriptors_after(scenario) < 30
    for line in lines:
        # Batches that nobody gives back would be many more.
        assert line.get("descriptors", 0) < 30 and line.get("grown_bytes", 0) < 4e6, line


def skipped(message):
    warnings.warn(message)
    pytest.skip(message)
