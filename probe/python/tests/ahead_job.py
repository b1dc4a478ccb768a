"""Iterates loaders whose samples are fetched ahead; prints what came of it, a JSON line a case.

usage: ahead_job.py FOLDER CASE...; each case has a folder of its own under FOLDER.
"""

import gc
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from ahead_sets import SAMPLES, Failing, Files, Hanging, Locked, Parts, Swallowing
from torch.utils.data import DataLoader, RandomSampler, Subset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

import stallscope
from stallscope.data.prefetch import fetcher_groups, server, shared_memory

SETS = {"parts": Parts, "files": Files, "failing": Failing, "swallowing": Swallowing}
BATCH = 12
# Keeps about half of the samples, and holds some 7 that wait for their use.
CACHE = 384 << 10
CACHE_OF_MANY = 2 << 20
OWN_COMMAND = Path("/proc/self/cmdline").read_bytes()


def values(batch):
    return batch.tolist()


def ids(epoch):
    """Of an epoch's batches, or of its samples where there are none."""
    return [int(sample[0]) for batch in epoch for sample in (batch if isinstance(batch[0], list) else [batch])]


def epochs(one, count):
    got = []
    for epoch in range(count):
        if isinstance(one.sampler, DistributedSampler):
            one.sampler.set_epoch(epoch)
        got.append([values(batch) for batch in one])
    return got


ORDERS = {
    "shuffle": lambda: {"shuffle": True},
    "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "generator-even": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3), "batch_size": 7},
    "drop-last": lambda: {"shuffle": True, "drop_last": True},
    "sequential": lambda: {},
    "distributed": lambda: {"sampler": DistributedSampler(range(SAMPLES), num_replicas=2, rank=1, seed=2)},
    "replacement": lambda: {"sampler": RandomSampler(range(SAMPLES), replacement=True)},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)},
    "single": lambda: {"shuffle": True, "batch_size": None},
}


def made(dataset, order, ours=True, seed=5, **more):
    torch.manual_seed(seed)
    random.seed(seed)
    given = {"batch_size": BATCH, "num_workers": 2, **ORDERS[order](), **more}
    return (stallscope.DataLoader if ours else DataLoader)(dataset, **given)


def begun(one):
    """The loader with its cache made, and the log of what that read cleared."""
    one._stored()
    one.dataset.begin()
    return one


def left():
    """Processes of ours that are still there, once all had time to go."""
    until(lambda: not fetchers() and not servers(), fail=False)
    return len(fetchers() + servers())


def until(condition, fail=True):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            assert not fail, f"it did not come about with {[state_of(pid) for pid in servers() + fetchers()]}"
            return
        time.sleep(0.02)


def state_of(pid):
    """Name, state, parent and what the kernel has it wait for: what there is to see of a process."""
    try:
        stat, wchan = (Path(f"/proc/{pid}/{name}").read_text() for name in ("stat", "wchan"))
    except OSError as error:
        return pid, str(error)
    return pid, stat.partition("(")[2].split()[:3], wchan


def fetchers():
    return called("stallscope-ahea")


def servers():
    """The processes that make fetchers."""
    return called("stallscope-fork")


def rests(pid):
    """Whether this process did nothing for longer than a fork server with fetchers ever waits."""

    def switches():
        status = Path(f"/proc/{pid}/status").read_text()
        return [line for line in status.splitlines() if "ctxt_switches" in line]

    before = switches()
    time.sleep(1.5 * server._LATEST_S)
    return switches() == before


def has_pidfd():
    """Whether the kernel tells of a process's end, so that nobody has to look for it."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def called(name):
    """Those of this name that come from this process, whatever their parent is by now."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            stat = (process / "stat").read_text() if process.name.isdigit() else ""
            forked = f"({name})" in stat and (process / "cmdline").read_bytes() == OWN_COMMAND
        except OSError:
            continue
        if forked and ") Z " not in stat:
            found.append(int(process.name))
    return found


def same(folder, order, kind="parts", persistent=False, fetching=4):
    """The same loader: torch's, ours, and ours with fetchers."""

    def got(ours, **more):
        one = made(SETS[kind](folder), order, ours, persistent_workers=persistent, **more)
        if "cache" in more:
            begun(one)
        result = epochs(one, 2)
        generator = one.generator.get_state().tolist() if one.generator is not None else []
        return result, torch.rand(2).tolist() + [random.random()] + generator, one

    torchs, after, _ = got(False)
    plain, _, _ = got(True)
    ahead, after_ahead, one = got(True, cache=CACHE, fetchers=fetching)
    figures, reads = one.cache_figures(), one.dataset.reads()
    del one
    return {
        "order": [ids(epoch) for epoch in torchs] == [ids(epoch) for epoch in ahead],
        "samples": plain == ahead, "after": after == after_ahead, "figures": figures,
        "most": max(reads.values(), default=0), "reads": sum(reads.values()), "left": left(),
    }  # fmt: skip


def slow(folder, fetching):
    """A source of 5 ms a read, and two workers."""
    one = begun(made(Parts(folder, delay_s=0.005, samples=1500), "shuffle", cache=CACHE_OF_MANY, fetchers=fetching))
    got = ids([values(batch) for batch in one])
    reads = sum(one.dataset.reads().values())
    return {"whole": sorted(got) == list(range(1500)), "figures": one.cache_figures(), "reads": reads}


def resumed(folder):
    (plain,) = epochs(made(Parts(folder), "shuffle"), 1)
    one = begun(made(Parts(folder), "shuffle", cache=CACHE, fetchers=3))
    iterator = iter(one)
    got = [values(next(iterator)) for _ in range(5)]
    state = one.state_dict()
    del iterator, one
    other = made(Parts(folder), "shuffle", cache=CACHE, fetchers=3, seed=99)
    other.load_state_dict(state)
    got += epochs(other, 1)[0]
    return {"same": got == plain, "figures": other.cache_figures()}


def sampled(folder, sampling):
    """Another sampling than torch's, with fetchers and without."""

    def got(**more):
        options = {"cache_share": 0.5} if sampling == "reuse" else {}
        one = made(Parts(folder), "shuffle", sampling=sampling, sampling_options=options, cache=CACHE, **more)
        begun(one)
        result = []
        for _ in range(2):
            for batch, numbers, weights in one.weighted():
                result.append((values(batch), numbers.tolist(), weights.tolist()))
                one.update(numbers, (numbers % 5).float())
        return result, one

    plain, other = got(fetchers=0)
    before = sum(other.dataset.reads().values())
    del other
    ahead, one = got(fetchers=4)
    figures, reads = one.cache_figures(), one.dataset.reads()
    return {"same": plain == ahead, "figures": figures, "reads": sum(reads.values()), "before": before}


def killed(folder, moments):
    """Fetchers are killed at random moments."""
    plain = epochs(made(Parts(folder), "shuffle", persistent_workers=True), 3)
    one = begun(made(Parts(folder, delay_s=0.002), "shuffle", persistent_workers=True, cache=CACHE, fetchers=3))
    chance, got, ended = random.Random(moments), [], 0
    for _ in range(3):
        got.append([])
        for batch in one:
            got[-1].append(values(batch))
            there = fetchers()
            if there and ended < moments and chance.random() < 0.3:
                os.kill(chance.choice(there), signal.SIGKILL)
                ended += 1
    figures, stopped = one.cache_figures(), one._store.ahead.stopped
    del one, batch
    return {"same": got == plain, "killed": ended, "figures": figures, "stopped": stopped, "left": left()}


def pool_killed(folder):
    from cached_job import pools

    plain = epochs(made(Parts(folder), "shuffle"), 3)
    one = begun(made(Parts(folder, delay_s=0.001), "shuffle", cache=CACHE, fetchers=3))
    got, ended = [], 0
    for _ in range(3):
        got.append([])
        for number, batch in enumerate(one):
            got[-1].append(values(batch))
            if number == 4 and not ended:
                for pid in pools():
                    os.kill(pid, signal.SIGKILL)
                    ended += 1
    return {"same": got == plain, "killed": ended, "figures": one.cache_figures()}


def turned(folder):
    """The number of fetchers changes 50 times within an epoch, and the window with it."""
    more = {"samples": 800}
    (plain,) = epochs(made(Parts(folder, **more), "shuffle"), 1)
    one = begun(made(Parts(folder, delay_s=0.001, **more), "shuffle", cache=CACHE, fetchers=2))
    got, most = [], 0
    for number, batch in enumerate(one):
        got.append(values(batch))
        if number < 50:
            ahead = one._store.ahead
            ahead.want((0, 5, 1, 3)[number % 4])
            ahead.window = (0, 20)[number % 2]
        if number == 50:
            until(fetchers)
        most = max(most, len(fetchers()))
    reads = one.dataset.reads()
    reads = {"most": max(reads.values()), "reads": sum(reads.values())}
    return {"same": got == plain, "fetchers": most, **reads, "figures": one.cache_figures()}


def forks(folder, persistent):
    """Turned up from none in mid-epoch, and down to none between two batches, with what that forks."""
    forked = []
    os.register_at_fork(before=lambda: forked.append(os.getpid()))
    (plain,) = epochs(made(Parts(folder), "shuffle", persistent_workers=persistent), 1)
    one = begun(made(Parts(folder), "shuffle", persistent_workers=persistent, cache=CACHE, fetchers=1))
    ahead, got = one._store.ahead, []
    ahead.want(0)
    for number, batch in enumerate(one):
        got.append(values(batch))
        if number == 0:
            forked.clear()
            ahead.want(5)
            until(lambda: len(fetchers()) == 5)
            parents = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in fetchers()}
            by_server = parents == set(servers())
        if number == 9:
            # No batch is taken meanwhile.
            ahead.want(0)
            until(lambda: not fetchers() and (not has_pidfd() or all(map(rests, servers()))))
    epoch_forks = len(forked)
    # A loader that goes in mid-epoch.
    ahead.want(2)
    iterator = iter(one)
    next(iterator)
    until(lambda: len(fetchers()) == 2)
    del iterator, one, ahead, batch
    return {"same": got == plain, "by_server": by_server, "forks": epoch_forks, "left": left()}


def server_killed(folder, persistent):
    plain = epochs(made(Parts(folder), "shuffle", persistent_workers=persistent), 3)
    one = begun(
        made(Parts(folder, delay_s=0.001), "shuffle", persistent_workers=persistent, cache=CACHE, fetchers=3)
    )
    got, there = [], []
    for epoch in range(3):
        got.append([])
        for number, batch in enumerate(one):
            got[-1].append(values(batch))
            if number == 4:
                if epoch == 0 or not persistent:
                    until(fetchers)
                there.append(int(one._store.ahead.group.server.is_alive()))
            if number == 4 and epoch == 0:
                for pid in servers():
                    os.kill(pid, signal.SIGKILL)
                # Who lost the one that made it goes, too.
                until(lambda: not fetchers() and not servers())
    stopped = one._store.ahead.stopped
    del one, batch
    return {"same": got == plain, "there": there, "stopped": stopped, "left": left()}


def reaping(folder, persistent):
    """A job that reaps all children, its own and others'."""
    reaped = set()

    def reap(*_):
        try:
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                reaped.add(pid)
        except ChildProcessError:
            pass

    plain = epochs(made(Parts(folder), "shuffle", persistent_workers=persistent), 3)
    before = signal.signal(signal.SIGCHLD, reap)
    one = begun(made(Parts(folder), "shuffle", persistent_workers=persistent, cache=CACHE, fetchers=3))
    ahead, groups, got, gone = one._store.ahead, [], [], []
    for epoch in range(3):
        got.append([])
        for number, batch in enumerate(one):
            got[-1].append(values(batch))
            if number == 0 and ahead.group not in groups:
                groups.append(ahead.group)
            if number == 4 and (epoch == 0 or not persistent):
                os.kill(ahead.group.server.pid, signal.SIGKILL)
                until(lambda: ahead.group.server.pid in reaped)  # noqa: F821
    pids = [group.server.pid for group in groups]
    until(lambda: ahead._reap() or len(ahead.groups) == 0)  # noqa: F821
    stopped, kill, leaving_s = ahead.stopped, fetcher_groups.FetcherGroup.kill, shared_memory.LEAVING_S
    if not persistent:
        # One more, that is there when the loader goes: nobody waits for it when it is gone.
        shared_memory.LEAVING_S = 10**6
        ahead.next_pass()
        fetcher_groups.FetcherGroup.kill = lambda group: gone.append(group.is_gone()) or kill(group)
        groups.append(ahead.group)
    del one, ahead, batch
    left_over = left()
    fetcher_groups.FetcherGroup.kill, shared_memory.LEAVING_S = kill, leaving_s
    ours = [group.server for group in groups if group.server in multiprocessing.active_children()]
    signal.signal(signal.SIGCHLD, before)
    # Its number is another's by now.
    with subprocess.Popen(["sleep", "1000"]) as other:
        groups[0].server._popen.pid, groups[0].server._popen.returncode = other.pid, None
        groups[0]._kill_server()
        other.terminate()
        spared = other.wait() == -signal.SIGTERM
    return {
        "same": got == plain, "reaped": set(pids) <= reaped, "stopped": stopped, "left": left_over,
        "gone": gone, "remembered": len(ours), "spared": spared,
    }  # fmt: skip


def locked(folder):
    """Epochs that are left early, with fetchers at what holds a lock."""
    one = begun(made(Locked(folder, delay_s=0.005), "shuffle", cache=CACHE, fetchers=3))
    seen = []
    for _ in range(12):
        for number, _ in enumerate(one):
            if number == 2:
                break
        seen.append(number)
    return {"seen": seen, "figures": one.cache_figures()}


def failing(folder, cached):
    """What a loop gets from samples that cannot be made."""
    one = made(Failing(folder), "sequential", batch_size=None, **({"cache": CACHE, "fetchers": 3} if cached else {}))
    iterator, got = iter(one), []
    while True:
        try:
            got.append(values(next(iterator))[:2])
        except StopIteration:
            return {"got": got}
        except ZeroDivisionError as error:
            got.append([str(error).strip().splitlines()[-1]])


def subset(folder):
    def got(**more):
        return epochs(made(Subset(Parts(folder), list(range(0, SAMPLES, 2))), "shuffle", **more), 2)

    return {"same": got() == got(cache=CACHE, fetchers=3)}


def trainer(folder):
    """Iterates until it is killed."""
    one = begun(made(Parts(folder, delay_s=0.002), "shuffle", cache=CACHE, fetchers=3))
    for epoch in range(10**6):
        for _ in one:
            pids = fetchers()
            if len(pids) == 3:
                print(json.dumps({"trainer": os.getpid(), "fetchers": pids, "servers": servers()}), flush=True)


def hung(folder):
    """Trains until its fetchers hang in a read, and ends on request."""
    shared_memory.LEAVING_S = 0.3
    one = Hanging(folder, samples=600)
    iterator = iter(begun(made(one, "sequential", batch_size=2, cache=CACHE_OF_MANY, fetchers=3)))
    got = values(next(iterator))
    until(lambda: len(one.hanging()) == 3)
    print(json.dumps({"got": [sample[0] for sample in got], "fetchers": one.hanging(), "servers": servers()}))
    sys.stdout.flush()
    sys.stdin.readline()
    return {}


CASES = {
    "same": same, "slow": slow, "resumed": resumed, "sampled": sampled, "killed": killed, "pool_killed": pool_killed,
    "turned": turned, "forks": forks, "server_killed": server_killed, "failing": failing,
    "locked": locked, "reaping": reaping, "subset": subset, "trainer": trainer, "hung": hung,
}  # fmt: skip


def main():
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    for number, case in enumerate(sys.argv[2:]):
        name, *arguments = json.loads(case)
        folder = root / str(number)
        folder.mkdir(parents=True)
        print(json.dumps(CASES[name](str(folder), *arguments)), flush=True)
        # A loader that the frames of an exception hold in a cycle has its fetchers until then.
        gc.collect()


if __name__ == "__main__":
    main()
