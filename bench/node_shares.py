"""`make bench-node-shares`: how the node's service divides memory among caches, beside other ways to divide it. Needs root.

Sets of four jobs drawn by seed, each with a data set that it reads in a new random order each epoch. A real service hears of
them over its socket, by clients that say what memory is worth to each, and grants memory. What the jobs then reach is simulated
sample by sample: with what was granted, with a quarter of the memory each, with one LRU cache that they share, and with the best
division of all in steps of 1/24 of the memory, found by trying each. The caches of the others keep what came first, of which no
policy has more hits in such orders. A job's goodput is its pace as a share of what it would have if it waited for nothing.
No memory is taken for it; a minute or two.
"""

import argparse
import itertools
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from node_scale import SERVICE_UID, STALLSCOPE, BenchFailed, line, version
from table import ROOT, Row, markdown, summary, write

WORK = ROOT / "target" / "bench" / "node-shares"
NOBODY = 65534
AS_NOBODY = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
GIB = 1 << 30
# The unit of data in the simulation.
BLOCK = 8 << 20
BUDGET = 6 * GIB
STEPS = 24
EPOCHS = 4
# Memory is taken from a job for others every 30 s at most.
SETTLED_S, MOST_S = 40, 240
MIN_OF_BEST = 0.95
POLICY = """\
[node]
memory_reserve = "{reserve}"
[[jobs.rule]]
mode = "act"
cache = {{ max = "100%", of = "node memory" }}
"""


@dataclass
class Job:
    """Times are for a block."""

    blocks: int
    read_s: float
    step_s: float

    def epoch_s(self, held: int) -> float:
        """With so many bytes held: what is not is read while the job computes."""
        missed = 1 - min(1.0, held / BLOCK / self.blocks)
        return self.blocks * max(self.step_s, missed * self.read_s)

    def saved(self, held: int) -> float:
        return 1 - self.epoch_s(held) / self.epoch_s(0)

    def goodput(self, epoch_s: float) -> float:
        return self.blocks * self.step_s / epoch_s


def draw(seed: int) -> list[Job]:
    """Of data sets from half of the memory to three times it, jobs that wait for most of their time to hardly at all."""
    chance = random.Random(seed)
    jobs = []
    for _ in range(4):
        step_s = chance.uniform(0.02, 0.2)
        jobs.append(Job(int(chance.uniform(0.5, 3) * BUDGET / BLOCK), step_s * chance.choice([0.9, 1.5, 3, 6]), step_s))
    return jobs


class Cache:
    """Of blocks. `replaces`: the one that was not used for longest goes for each that comes; else what came first stays."""

    def __init__(self, blocks: int, replaces: bool):
        self.blocks, self.replaces, self.kept = blocks, replaces, OrderedDict()

    def hit(self, block) -> bool:
        if block in self.kept:
            self.kept.move_to_end(block)
            return True
        if len(self.kept) >= self.blocks and self.replaces:
            self.kept.popitem(last=False)
        if len(self.kept) < self.blocks:
            self.kept[block] = None
        return False


def simulate(jobs: list[Job], caches: list[Cache], seed: int) -> list[float]:
    """Goodput of each over its later epochs; all read on until the last has done `EPOCHS`, as their neighbours would."""
    chances = [random.Random(f"{seed} {number}") for number in range(len(jobs))]
    orders: list[list[int]] = [[] for _ in jobs]
    # Reading ahead evens out within 64 blocks what is read and what is computed.
    clocks, done, took = [0.0] * len(jobs), [0] * len(jobs), [[] for _ in jobs]
    begun = [0.0] * len(jobs)
    while min(done) < EPOCHS:
        number = clocks.index(min(clocks))
        job, order = jobs[number], orders[number]
        if not order:
            if clocks[number]:
                done[number] += 1
                took[number].append(clocks[number] - begun[number])
            begun[number] = clocks[number]
            order += chances[number].sample(range(job.blocks), job.blocks)
        window = order[-64:]
        del order[-64:]
        missed = sum(not caches[number].hit((number, block)) for block in window)
        clocks[number] += max(len(window) * job.step_s, missed * job.read_s)
    return [job.goodput(fmean(epochs[1:])) for job, epochs in zip(jobs, took)]


def divided(jobs: list[Job], held: list[int], seed: int) -> list[float]:
    return simulate(jobs, [Cache(of // BLOCK, replaces=False) for of in held], seed)


def best(jobs: list[Job]) -> list[int]:
    """Of all divisions in steps the one with the most goodput in sum."""
    of = [[job.goodput(job.epoch_s(BUDGET * step // STEPS)) for step in range(STEPS + 1)] for job in jobs]
    whole = (steps for steps in itertools.product(range(STEPS + 1), repeat=3) if sum(steps) <= STEPS)
    divisions = ((*steps, STEPS - sum(steps)) for steps in whole)
    found = max(divisions, key=lambda division: sum(of[number][step] for number, step in enumerate(division)))
    return [BUDGET * step // STEPS for step in found]


def ask(service: Path, curve: list):
    """As a job's collector: says what memory is worth to its job, and what it was granted, which it prints."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(service))
    lines = connection.makefile("rb")
    connection.sendall(line({"stallscope": version(), "role": "job", "name": "simulated"}))
    lines.readline()
    # Ends with this process, however that ends.
    job = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    connection.sendall(line({"started": {"pid": job.pid}}))
    for answer in lines:
        granted = json.loads(answer)["granted"]["cache_bytes"]
        print(granted, flush=True)
        cache = {"granted_bytes": granted, "held_bytes": granted, "benefit": curve}
        connection.sendall(line({"report": {"saved_s": 0.0, "faster": 0.0, "cache": cache}}))


class Node:
    """A service of its own, and the clients of a set of jobs."""

    def __init__(self, number: int, jobs: list[Job], reserve: int):
        self.folder = WORK / str(number)
        self.folder.mkdir(parents=True)
        (self.folder / "policy.toml").write_text(POLICY.format(reserve=reserve))
        self.environment = {**os.environ, "STALLSCOPE_KERNEL_SOCKET": str(self.folder / "kernel.sock")}
        words = ["node-service", "--config", "policy.toml", "--user", SERVICE_UID, "--socket", self.folder / "node.sock", "--state", self.folder / "state"]
        self.printed = (self.folder / "printed").open("w")
        self.service = subprocess.Popen([str(word) for word in [STALLSCOPE, *words]], cwd=self.folder, env=self.environment,
                                        stdin=subprocess.DEVNULL, stdout=self.printed, stderr=self.printed)
        self.clients: list[subprocess.Popen] = []
        self.granted = [0] * len(jobs)
        until = time.monotonic() + 20
        while not (self.folder / "node.sock").exists() or "serving" not in (self.folder / "printed").read_text():
            if self.service.poll() is not None or time.monotonic() > until:
                raise BenchFailed(f"the service did not begin; {self.folder / 'printed'} says why")
            time.sleep(0.05)
        for job in jobs:
            data = job.blocks * BLOCK
            curve = [[data * step // 10, job.saved(data * step // 10)] for step in range(1, 11)]
            command = [*AS_NOBODY, sys.executable, __file__, "--ask", str(self.folder / "node.sock"), json.dumps(curve)]
            self.clients.append(subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))

    def hear(self) -> bool:
        """Whether anything was granted anew."""
        ready, _, _ = select.select([client.stdout for client in self.clients], [], [], 0)
        for number, client in enumerate(self.clients):
            if client.stdout in ready:
                answer = client.stdout.readline()
                if not answer:
                    raise BenchFailed(f"a client of {self.folder} ended")
                self.granted[number] = int(answer)
        return bool(ready)

    def end(self):
        for client in self.clients:
            client.kill()
            client.wait()
        self.service.send_signal(signal.SIGTERM)
        self.service.wait()
        self.printed.close()


def settle(nodes: list[Node]):
    """Until no service has granted anything for a while."""
    begun = changed = time.monotonic()
    while (now := time.monotonic()) < changed + SETTLED_S:
        if any([node.hear() for node in nodes]):
            changed = now
        if now > begun + MOST_S:
            raise BenchFailed(f"grants still changed after {MOST_S} s")
        time.sleep(0.05)


def node_memory() -> int:
    return int(Path("/proc/meminfo").read_text().split()[1]) << 10


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=40)
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        return ask(Path(args.ask[0]), json.loads(args.ask[1]))
    if os.geteuid() != 0:
        sys.exit("bench-node-shares: a service for other users' jobs needs root; run this as root")
    if not STALLSCOPE.exists():
        sys.exit(f"bench-node-shares: {STALLSCOPE} is not built; run `make build` first")
    if node_memory() < BUDGET:
        sys.exit(f"bench-node-shares: a node with less than {BUDGET >> 30} GiB has nothing to divide here")
    shutil.rmtree(WORK, ignore_errors=True)
    sets = [draw(seed) for seed in range(args.sets)]
    nodes: list[Node] = []
    try:
        for number, jobs in enumerate(sets):
            nodes.append(Node(number, jobs, node_memory() - BUDGET))
        settle(nodes)
        granted = [list(node.granted) for node in nodes]
    finally:
        for node in nodes:
            node.end()
    if over := [of for of in granted if sum(of) > BUDGET]:
        raise BenchFailed(f"more was granted than there is: {over[0]}")
    found: dict[str, list[list[float]]] = {"no cache": [], "a quarter each": [], "one LRU": [], "as granted": [], "the best division": []}
    for seed, (jobs, of) in enumerate(zip(sets, granted)):
        one = Cache(BUDGET // BLOCK, replaces=True)
        found["no cache"].append(divided(jobs, [0] * 4, seed))
        found["a quarter each"].append(divided(jobs, [BUDGET // 4] * 4, seed))
        found["one LRU"].append(simulate(jobs, [one] * 4, seed))
        found["as granted"].append(divided(jobs, of, seed))
        found["the best division"].append(divided(jobs, best(jobs), seed))
    most = [sum(of) for of in found["the best division"]]
    rows, lines = [], []
    for way, goodputs in found.items():
        of_best = [sum(of) / top for of, top in zip(goodputs, most)]
        bar = way == "as granted"
        lines.append([way, f"{fmean(map(sum, goodputs)):.2f}", f"{fmean(of_best):.1%}", f"{min(of_best):.1%}"])
        rows.append(Row(way, "goodput in sum, of the best division's", 100 * fmean(of_best), "%",
                        f">= {100 * MIN_OF_BEST:.0f}%" if bar else None, fmean(of_best) >= MIN_OF_BEST if bar else None))
    slower = [after / before - 1 for alone, of in zip(found["no cache"], found["as granted"]) for before, after in zip(alone, of)]
    rows.append(Row("as granted", "a job against none of it having a cache, at worst", 100 * min(slower), "%", ">= -1%", min(slower) >= -0.01))
    ahead = fmean(sum(own) > sum(lru) and sum(own) >= 0.999 * sum(equal)
                  for own, lru, equal in zip(found["as granted"], found["one LRU"], found["a quarter each"]))
    rows.append(Row("as granted", "sets with no less than a quarter each and more than one LRU", 100 * ahead, "%"))
    print(markdown(["memory", "goodput in sum, of 4", "of the best division", "at worst"], lines))
    print(f"As granted no less than with a quarter each and more than with one LRU: in {ahead:.0%} of {len(sets)} sets.")
    print(summary(rows))
    print(f"Written to {write('node-shares', rows)}")
    if any(row.holds is False for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except BenchFailed as error:
        sys.exit(f"bench-node-shares: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
