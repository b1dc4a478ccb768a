"""The true ledger: where a truth job's trainer spent a window of time, by critical path, from the logs alone.

Times are CLOCK_MONOTONIC nanoseconds; causes add up to the window exactly.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from log import Did, Mark, Phase, read_folder

CAUSES = [
    "compute",
    "fetch",
    "prep",
    "starved",
    "transfer",
    "preempted",
    "snapshot",
    "persist",
    "peer",
    "unknown",
]

# What a piece of the trainer's own part counts as, what the time in it without a CPU does, and where it differs what the
# time on one does.
OWN = {
    Did.PERSIST: ("persist", "persist"),
    Did.SNAPSHOT: ("snapshot", "snapshot"),
    Did.COLLECTIVE: ("peer", "preempted"),
    Did.SLEEP: ("unknown", "preempted", "compute"),
    Did.READ: ("fetch", "preempted", "compute"),
    # Without a batch: the loader waits for its workers to leave.
    Did.END: ("unknown", "preempted"),
}
OWN_REST = ("compute", "preempted")

# The same for a piece of a thread that the trainer sleeps for; one that has nothing to do yet is not what it sleeps for. What
# a thread computes as it reads, nobody tells from what it makes of it.
HELPING = {
    Did.IDLE: ("unknown", "preempted"),
    Did.FETCH: ("fetch", "preempted", "prep"),
    Did.PREP: ("prep", "preempted"),
}

# The same for a piece of the producer's, while its batch is awaited.
AWAITED = {Did.FETCH: ("fetch", "starved"), Did.PREP: ("prep", "starved")}
AWAITED_REST = ("transfer", "starved")

# A thread that was blocked and is woken waits for a CPU at the end of its piece, not throughout.
BLOCKED_FIRST = (Did.IDLE, Did.SLEEP, Did.COLLECTIVE, Did.END, Did.TAKEN, Did.ARRIVED, Did.SERVING, Did.HELPED)


class Step(NamedTuple):
    """From one batch handed over to the next; `start_ns` is None for the first."""

    start_ns: int | None
    enter_ns: int
    end_ns: int
    token: int
    loader: int
    phase: Phase
    # The first batch of its iterator: this interval is start-up or between epochs, not `phase`.
    first: bool


@dataclass
class Thread:
    """One thread's marks, and where they are by time."""

    marks: list[Mark]

    def __post_init__(self):
        self.times = [mark.time_ns for mark in self.marks]

    def charge(self, start_ns: int, end_ns: int, causes: Counter, names: dict, rest: tuple[str, str]):
        """Adds the window to `causes`: each piece under its name, its run delay under that name's second, and its CPU time
        under the third where there is one."""
        at = start_ns
        place = max(1, bisect_right(self.times, start_ns))
        while at < end_ns and place < len(self.marks):
            before, after = self.marks[place - 1], self.marks[place]
            upto = min(after.time_ns, end_ns)
            if upto > at:
                busy, runnable, *on_cpu = names.get(after.did, rest)
                delay_ns = delay_between(before, after, at, upto)
                causes[runnable] += delay_ns
                cpu_ns = cpu_between(before, after, at, upto) if on_cpu else 0
                cpu_ns = min(cpu_ns, upto - at - delay_ns)
                causes.update(dict.fromkeys(on_cpu, cpu_ns))
                causes[busy] += upto - at - delay_ns - cpu_ns
                at = upto
            place += 1
        causes[rest[0]] += max(0, end_ns - at)

    def without_cpu_and_on_cpu(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Nanoseconds of the window that the thread was runnable, and running."""
        without_ns = on_ns = 0
        for place in range(max(1, bisect_right(self.times, start_ns)), len(self.marks)):
            before, after = self.marks[place - 1], self.marks[place]
            if before.time_ns >= end_ns:
                break
            from_ns, to_ns = max(before.time_ns, start_ns), min(after.time_ns, end_ns)
            if from_ns < to_ns:
                without_ns += delay_between(before, after, from_ns, to_ns)
                on_ns += cpu_between(before, after, from_ns, to_ns)
        return without_ns, on_ns

    def asked(self, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """When, in the window, the thread waited for descriptors."""
        first, last = bisect_right(self.times, start_ns), bisect_right(self.times, end_ns)
        pieces = pairwise(self.marks[max(0, first - 1) : last + 1])
        asked = [
            (max(before.time_ns, start_ns), min(after.time_ns, end_ns)) for before, after in pieces if after.did == Did.HANDED
        ]
        return [(from_ns, to_ns) for from_ns, to_ns in asked if from_ns < to_ns]


def delay_between(before: Mark, after: Mark, start_ns: int, end_ns: int) -> int:
    """How much of the piece's run delay falls into [start, end], which lies within the piece."""
    length_ns = after.time_ns - before.time_ns
    delay_ns = min(after.runnable_ns - before.runnable_ns, length_ns)
    if after.did in BLOCKED_FIRST:
        return max(0, end_ns - max(start_ns, after.time_ns - delay_ns))
    return delay_ns * (end_ns - start_ns) // length_ns


def cpu_between(before: Mark, after: Mark, start_ns: int, end_ns: int) -> int:
    return (after.cpu_ns - before.cpu_ns) * (end_ns - start_ns) // (after.time_ns - before.time_ns)


class Account:
    """The logs of one job."""

    def __init__(self, logs: dict[tuple[int, int], list[Mark]]):
        self.threads = {key: Thread(marks) for key, marks in logs.items()}
        self.ready = {
            mark.value: (key, mark.time_ns)
            for key, thread in self.threads.items()
            for mark in thread.marks
            if mark.did == Did.READY
        }
        # Who wrote and who read the message about a batch, and who handed over descriptors.
        self.sent, self.arrived, self.sharers = {}, {}, set()
        for key, thread in self.threads.items():
            for mark in thread.marks:
                if mark.did == Did.SENT:
                    self.sent[mark.value] = key, mark.time_ns
                elif mark.did == Did.ARRIVED:
                    self.arrived[mark.value] = key
                elif mark.did == Did.SERVED:
                    self.sharers.add(key)

    @classmethod
    def of_folder(cls, folder: Path) -> "Account":
        return cls(read_folder(folder))

    def ranks(self) -> dict[int, int]:
        """pid by rank."""
        return {
            mark.value: pid
            for (pid, _), thread in self.threads.items()
            for mark in thread.marks[:2]
            if mark.did == Did.RANK
        }

    @cache  # noqa: B019
    def steps(self, pid: int) -> list[Step]:
        return steps_of(self.threads[pid, pid].marks)

    def causes(self, pid: int, start_ns: int, end_ns: int) -> Counter:
        """Nanoseconds by cause of the trainer `pid` in the window; they add up to its length."""
        causes = Counter(dict.fromkeys(CAUSES, 0))
        at = start_ns
        for step in self.steps(pid):
            enter_ns, exit_ns = max(step.enter_ns, at), min(step.end_ns, end_ns)
            if step.end_ns <= at:
                continue
            if step.enter_ns >= end_ns:
                break
            if enter_ns > at:
                self.charge_own((pid, pid), at, enter_ns, causes)
            self.charge_wait((pid, pid), step, enter_ns, exit_ns, causes)
            at = exit_ns
        if at < end_ns:
            self.charge_own((pid, pid), at, end_ns, causes)
        return causes

    def charge_own(self, key: tuple, start_ns: int, end_ns: int, causes: Counter, names: dict = OWN):
        """The trainer's own part. While it sleeps for a helper, what that does counts, up to its own wake-up; likewise where
        the helper sleeps for another."""
        thread, at = self.threads[key], start_ns
        first, last = bisect_right(thread.times, start_ns), bisect_right(thread.times, end_ns)
        for before, after in pairwise(thread.marks[max(0, first - 1) : last + 1]):
            from_ns, to_ns = max(before.time_ns, at), min(after.time_ns, end_ns)
            if after.did != Did.HELPED or from_ns >= to_ns:
                continue
            thread.charge(at, from_ns, causes, names, OWN_REST)
            woken_ns = to_ns - delay_between(before, after, from_ns, to_ns)
            self.charge_own((key[0], after.value), from_ns, woken_ns, causes, HELPING)
            causes["preempted"] += to_ns - woken_ns
            at = to_ns
        thread.charge(at, end_ns, causes, names, OWN_REST)

    def charge_wait(self, trainer: tuple, step: Step, enter_ns: int, exit_ns: int, causes: Counter):
        key, ready_ns = self.ready[step.token]
        cut_ns = min(max(ready_ns, enter_ns), exit_ns)
        self.threads[key].charge(enter_ns, cut_ns, causes, AWAITED, AWAITED_REST)
        starved_ns = self.starved_on_its_way(trainer, step.token, cut_ns, exit_ns)
        causes["starved"] += starved_ns
        causes["transfer"] += exit_ns - cut_ns - starved_ns

    def starved_on_its_way(self, trainer: tuple, token: int, ready_ns: int, exit_ns: int) -> int:
        """How long a ready batch did not move because the thread that had to move it got no CPU: first its worker's feeder,
        then the reader of the message, and the worker's resource sharer for as long as the reader sleeps for a descriptor;
        and while feeder or sharer wait for the worker's interpreter lock, its main thread."""
        producer = self.ready[token][0]
        if producer == trainer:
            return self.threads[trainer].without_cpu_and_on_cpu(ready_ns, exit_ns)[0]
        if token not in self.sent or token not in self.arrived:
            return 0
        feeder, sent_ns = self.sent[token]
        sent_ns = min(max(sent_ns, ready_ns), exit_ns)
        sharers = [key for key in self.sharers if key[0] == producer[0]]
        starved_ns = self.starved(ready_ns, sent_ns, sent_ns - ready_ns, [feeder], producer)
        for reader in {self.arrived[token], trainer}:
            starved_ns += self.threads[reader].without_cpu_and_on_cpu(sent_ns, exit_ns)[0]
            for from_ns, to_ns in self.threads[reader].asked(sent_ns, exit_ns):
                asleep_ns = to_ns - from_ns - sum(self.threads[reader].without_cpu_and_on_cpu(from_ns, to_ns))
                starved_ns += self.starved(from_ns, to_ns, asleep_ns, sharers, producer)
        return min(starved_ns, exit_ns - ready_ns)

    def starved(self, start_ns: int, end_ns: int, awaited_ns: int, acting: list, holder: tuple) -> int:
        """Run delay of the threads that act in the window, for which somebody waited `awaited_ns` of it; while none of them
        ran or wanted to, that of the thread that holds the lock. It gives the lock back while it prepares, so that others
        wait long for it only where it lost its CPU with the lock in hand."""
        if start_ns >= end_ns or awaited_ns <= 0:
            return 0
        times = [self.threads[key].without_cpu_and_on_cpu(start_ns, end_ns) for key in acting]
        without_ns = min(awaited_ns, sum(without for without, _ in times))
        locked_ns = max(0, awaited_ns - without_ns - sum(on for _, on in times))
        holders_ns, _ = self.threads[holder].without_cpu_and_on_cpu(start_ns, end_ns)
        return without_ns + min(locked_ns, holders_ns)

    def hidden_ns(self, pid: int, start_ns: int, end_ns: int) -> int:
        """The part of the waits in the window during which the device still had work; 0 without a device."""
        hidden_ns, busy_until_ns = 0, 0
        entered_ns = None
        for mark in self.threads[pid, pid].marks:
            if mark.did == Did.DEVICE:
                busy_until_ns = mark.value
            elif mark.did == Did.ENTER:
                entered_ns = mark.time_ns
            elif mark.did == Did.EXIT:
                until_ns = min(mark.time_ns, busy_until_ns, end_ns)
                hidden_ns += max(0, until_ns - max(entered_ns, start_ns))
        return hidden_ns

    def loop_steps(self, pid: int) -> list[int]:
        """When the training steps of a loop without a loader ended."""
        return [mark.time_ns for mark in self.threads[pid, pid].marks if mark.did == Did.STEP]

    def batches_trained(self, pid: int) -> int | None:
        """With how many batches it trained; None where it took no others, so that there is nothing to distinguish."""
        phases = [step.phase for step in self.steps(pid)]
        return phases.count(Phase.TRAINING) if Phase.LOOK in phases else None

    def saves_beside(self) -> list[tuple[int, int]]:
        """When threads and children saved what the loop did not wait for."""
        pieces = (pair for thread in self.threads.values() for pair in pairwise(thread.marks))
        return [(before.time_ns, after.time_ns) for before, after in pieces if after.did == Did.SAVED]

    def training(self, pid: int) -> list[tuple[int, int]]:
        """The intervals that are training: steps of training that are not the first of their iterator, and what
        follows an iterator's last batch until its end; without a loader the steps after the first."""
        if ends := self.loop_steps(pid):
            return [(ends[0], ends[-1])]
        steps = [step for step in self.steps(pid) if step.phase == Phase.TRAINING]
        whole = [(step.start_ns, step.end_ns) for step in steps if not step.first]
        exits = {step.end_ns: step.loader for step in steps}
        tails, last = [], None
        for mark in self.threads[pid, pid].marks:
            if mark.did == Did.EXIT:
                last = mark.time_ns
            elif mark.did == Did.END and exits.get(last) == mark.value:
                tails.append((last, mark.time_ns))
        return sorted(whole + tails)


def steps_of(marks: list[Mark]) -> list[Step]:
    steps, begun, previous_ns, enter = [], set(), None, None
    for mark in marks:
        if mark.did == Did.ENTER:
            enter = mark
        elif mark.did == Did.END:
            begun.discard(mark.value)
        elif mark.did == Did.EXIT:
            first = enter.value not in begun
            begun.add(enter.value)
            phase = Phase(mark.extra)
            steps.append(Step(previous_ns, enter.time_ns, mark.time_ns, mark.value, enter.value, phase, first))
            previous_ns = mark.time_ns
    return steps
