"""Jobs for which workers that are added may be the wrong thing; turned from outside like those of resizing.py, and as that used.

usage: adding.py BATCHES SCENARIO...
"""

import collections
import contextlib
import multiprocessing
import os
import signal
import sys
import time

import adding_open
import resizing
import torch
from resizing import BATCH, WORKERS, Numbers, epochs, loader, report, step, values
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Sampler, get_worker_info


class Table(Numbers):
    """Knows as many workers as its script has."""

    def __init__(self, batches):
        super().__init__(batches)
        self.opened = [torch.zeros(1)] * WORKERS

    def __getitem__(self, index):
        return super().__getitem__(index) + self.opened[get_worker_info().id].long()


MEETING = multiprocessing.Barrier(WORKERS)
TURNS = multiprocessing.Queue()


def meet(number):
    MEETING.wait(60)


def take_turns(number):
    TURNS.get(timeout=60)


def taking_turns(batches):
    for _ in range(3):
        for number in range(WORKERS):
            TURNS.put(number)
        epochs(loader(batches, worker_init_fn=take_turns), count=1)


class Seeing(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen[getattr(function, "__name__", "")] += 1
        return function(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen[str(function)] += 1
        return function(*args, **(kwargs or {}))


class Holding(Numbers):
    def __init__(self, batches):
        super().__init__(batches)
        self.weights, self.generator = torch.ones(5), torch.Generator()


def seen(batches):
    """What modes see that training has around it."""
    for mode in (Seeing(), Dispatching()):
        with mode:
            for _ in loader(batches, Holding, shuffle=True, generator=torch.Generator()):
                pass
        report(got=sorted(mode.seen.items()))
    epochs(loader(batches))


class Grown(Numbers):
    """Is as long as it is found to be when it is asked."""

    asked = 0

    def __len__(self):
        self.asked += 1
        return self.samples + int(torch.randint(3, ()))


def grown(batches):
    """What its samples are, and how often it was asked."""
    torch.manual_seed(5)
    numbers = loader(batches + 2, Grown, shuffle=True)
    numbers.dataset.samples = batches * BATCH
    epochs(numbers)
    report(got=[numbers.dataset.asked, torch.rand(()).item()])


class Drawing(Numbers):
    def __getitem__(self, index):
        return torch.cat([super().__getitem__(index), torch.randint(10**6, (1,))])


def drawing(batches):
    torch.manual_seed(3)
    epochs(loader(batches, Drawing, worker_init_fn=resizing.no_more_than_two))


class Locked(Numbers):
    """Its workers read one after the other, and each has something to do first."""

    def __init__(self, batches):
        super().__init__(batches)
        self.lock = multiprocessing.Lock()

    def __getitem__(self, index):
        with self.lock:
            return super().__getitem__(index)


def held_lock(number):
    if number >= WORKERS:
        with get_worker_info().dataset.lock:
            # Until somebody has sent it away, and a while more.
            open(os.path.join(os.environ["UNTIL"], "holds"), "w").close()
            while not os.path.exists(os.path.join(os.environ["UNTIL"], "asked")):
                time.sleep(0.01)
            time.sleep(0.5)


class Ending(Numbers):
    """Its library does not know a third worker, and ends it."""

    def __getitem__(self, index):
        if get_worker_info().id >= WORKERS:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Known(Numbers):
    """Its library knows as many processes as the script has workers, the first ones, and ends each that comes later."""

    is_known = False

    def __getitem__(self, index):
        self.is_known = self.is_known or any(map(took, range(WORKERS)))
        if not self.is_known:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def took(place):
    try:
        os.close(os.open(os.path.join(os.environ["UNTIL"], f"place-{place}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Places(Numbers):
    """There is a place for each of the script's workers, which it takes with its first sample and keeps."""

    def __init__(self, batches):
        super().__init__(batches)
        self.places, self.place = multiprocessing.Semaphore(WORKERS), None

    def __getitem__(self, index):
        self.place = self.place or self.places.acquire()
        return super().__getitem__(index)


def impatient(batches, dataset, count=2, **more):
    unproven = sys.modules.get("stallscope._hooks.unproven")
    if unproven is not None:
        unproven._PATIENCE_S = 1.0
    epochs(loader(batches, dataset, **more), count)


class Outdone(Numbers):
    """An added worker finds no device for its samples in the end, while one of the script's own makes the same ones."""

    def __getitem__(self, index):
        taken, again = (os.path.join(os.environ["UNTIL"], name) for name in (f"taken-{index}", "again"))
        if get_worker_info().id >= WORKERS:
            open(taken, "w").close()
            while not os.path.exists(again):
                time.sleep(0.01)
            raise LookupError("there is no device")
        if os.path.exists(taken):
            open(again, "w").close()
            time.sleep(2)
        return super().__getitem__(index)


class Contended(Numbers):
    """Each worker waits for all others with its epoch's first batch, as for one disk."""

    def __getitem__(self, index):
        if index < 6 * BATCH:
            time.sleep(0.2 * len(siblings()))
        return super().__getitem__(index)


def siblings():
    parent = os.getppid()
    return open(f"/proc/{parent}/task/{parent}/children").read().split()


class Full(Numbers):
    """Its workers use a device, which stands for one that matters."""

    device = None

    def __getitem__(self, index):
        self.device = self.device or open("/dev/full", "rb", buffering=0)
        return super().__getitem__(index)


def using_a_device(batches):
    devices = sys.modules.get("stallscope._hooks.devices")
    if devices is not None:
        number = os.stat("/dev/full").st_rdev
        devices._matters = lambda device: device == number
    epochs(loader(batches, Full))


class Late(Numbers):
    """An added worker makes its first sample when training has left the epoch."""

    def __getitem__(self, index):
        while get_worker_info().id >= WORKERS and not os.path.exists(os.path.join(os.environ["UNTIL"], "left")):
            time.sleep(0.01)
        return super().__getitem__(index)


def heavy(samples):
    """What an added worker hands over does not fit into a pipe."""
    return bytes(8 << 20) if get_worker_info().id >= WORKERS else torch.stack(samples)


def late(batches):
    sys.modules["stallscope._hooks.unproven"]._PATIENCE_S = 0.5
    numbers = loader(batches, Late, collate_fn=heavy, persistent_workers=True)
    for batch in numbers:
        step()
        if os.path.exists(os.path.join(os.environ["UNTIL"], "0")):
            break
    open(os.path.join(os.environ["UNTIL"], "left"), "w").close()
    # It hands over meanwhile, and nobody takes it.
    time.sleep(3)
    report(got=[number for batch in numbers for number in values(batch)])


class Failing(Sampler):
    """In its second epoch it comes to an index that it can't give."""

    def __init__(self, samples):
        self.samples, self.epoch = samples, 0

    def __len__(self):
        return self.samples

    def __iter__(self):
        self.epoch += 1
        for index in range(self.samples):
            if self.epoch > 1 and index == 200:
                raise LookupError("no such index")
            yield index


class Counting(Sampler):
    """Counts the epochs that it has given."""

    def __init__(self, samples):
        self.samples, self.given = samples, 0

    def __iter__(self):
        yield from range(self.samples)
        self.given += 1


def failing_order(batches):
    numbers = loader(batches, sampler=Failing(batches * BATCH))
    for _ in range(3):
        got = []
        with contextlib.suppress(LookupError):
            for batch in numbers:
                got += values(batch)
                step()
        report(got=got)


def counted_order(batches):
    """Training goes by its sampler's count."""
    numbers = loader(batches, sampler=Counting(batches * BATCH))
    for _ in range(3):
        got = []
        for batch in numbers:
            got += [*values(batch), numbers.sampler.given]
            step()
        report(got=got)


class Repeating:
    """Begins its sampler again and again."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class Endless(DataLoader):
    """Keeps one iterator for the whole run, as YOLOv5's does."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        object.__setattr__(self, "batch_sampler", Repeating(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def endless(batches):
    """Passes until it was turned, and two more; what it gave in them, by pass."""
    resizing.KEPT.append(Endless(Numbers(batches), batch_size=BATCH, num_workers=WORKERS))
    left = 2
    while left:
        left -= os.path.exists(os.path.join(os.environ["UNTIL"], "0"))
        got = []
        for batch in resizing.KEPT[0]:
            got += values(batch)
            step()
        report(got=got)
    # Its workers go with it.
    resizing.KEPT.pop().iterator = None


class OwnProcess(multiprocessing.context.ForkProcess):
    def __init__(self, target, args):
        super().__init__(target=target, args=args)


class OwnContext(multiprocessing.context.ForkContext):
    Process = OwnProcess


def numbered_processes(batches):
    """Goes by the number of a process of its own."""
    epochs(loader(batches))
    report(got=multiprocessing.Process().name)


def another_path(batches):
    """Has set PYTHONPATH for programs of its own."""
    os.environ["PYTHONPATH"] = "/nowhere"
    epochs(loader(batches, multiprocessing_context="spawn"), count=1)


SCENARIOS = {
    **adding_open.SCENARIOS,
    "plain": lambda n: epochs(loader(n)),
    "another-path": another_path,
    "numbered-processes": numbered_processes,
    "own-context": lambda n: epochs(loader(n, multiprocessing_context=OwnContext())),
    "drawing": drawing,
    "held-lock": lambda n: epochs(loader(n, Locked, worker_init_fn=held_lock)),
    "ending": lambda n: epochs(loader(n, Ending)),
    "ending-persistent": lambda n: epochs(loader(n, Ending, persistent_workers=True)),
    "late": late,
    "contended": lambda n: epochs(loader(n, Contended, timeout=2, persistent_workers=True)),
    "device": using_a_device,
    "outdone": lambda n: impatient(n, Outdone, count=1),
    "known": lambda n: epochs(loader(n, Known), count=1),
    "known-persistent": lambda n: epochs(loader(n, Known, persistent_workers=True)),
    "places": lambda n: impatient(n, Places, count=1),
    "places-persistent": lambda n: impatient(n, Places, persistent_workers=True),
    "failing-order": failing_order,
    "counted-order": counted_order,
    "endless": endless,
    "table": lambda n: epochs(loader(n, Table)),
    "unordered": lambda n: epochs(loader(n, num_workers=1, in_order=False)),
    "meeting": lambda n: epochs(loader(n, worker_init_fn=meet), count=3),
    "taking-turns": taking_turns,
    "seen": seen,
    "grown": grown,
}


if __name__ == "__main__":
    resizing.main(SCENARIOS)
