"""A job whose loaders are turned from outside while it runs; prints JSON lines that say which scenario they are of.

usage: resizing.py BATCHES SCENARIO...
"""

import gc
import json
import os
import random
import signal
import sys
import time

import torch
from leftovers import children, descriptors, left, resident_bytes
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

BATCH, WORKERS = 2, 2
STEP_S = 0.002

# The one under way, and loaders that are kept, so that each has a number of its own.
SCENARIO, KEPT = [""], []


class Numbers(Dataset):
    def __init__(self, batches):
        self.samples = batches * BATCH

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        # Unequal, so that batches are done out of order.
        time.sleep(0.001 * (index * 7 % 5) / 4)
        return torch.tensor([index])


class Failing(Numbers):
    def __getitem__(self, index):
        if index % 50 == 49:
            raise KeyError("this sample is broken")
        return super().__getitem__(index)


class Slow(Numbers):
    """Slower still once the folder has a file "asked", so that a worker that is to leave is there for long."""

    def __getitem__(self, index):
        time.sleep(1 if os.path.exists(os.path.join(os.environ["UNTIL"], "asked")) else 0.1)
        return torch.tensor([index])


class Large(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, index):
        return [torch.zeros(25_000) for _ in range(10)]


class Seeded(Numbers):
    """What a worker draws, and who it is."""

    def __getitem__(self, index):
        info = get_worker_info()
        return torch.tensor([index, info.id, info.seed - info.id, info.num_workers])


class Changing(Numbers):
    """What its script last set, too."""

    epoch = 0

    def __getitem__(self, index):
        return torch.cat([super().__getitem__(index), torch.tensor([self.epoch])])


class Stream(IterableDataset):
    def __init__(self, batches):
        self.samples = batches * BATCH

    def __iter__(self):
        info = get_worker_info()
        # The first worker's share is much smaller, so that it ends long before the others.
        if info.id == 0 and info.num_workers > 1:
            return iter(range(0, self.samples // 10))
        first = self.samples // 10 if info.num_workers > 1 else 0
        others = max(1, info.num_workers - 1)
        return iter(range(first + max(0, info.id - 1), self.samples, others))


class Undivided(IterableDataset):
    """Right with one worker alone."""

    def __init__(self, batches):
        self.samples = batches * BATCH

    def __iter__(self):
        return iter(range(self.samples))


def no_more_than_two(number):
    if number >= 2:
        raise IndexError("there is nothing for a third worker")


def never_there(number):
    if number >= 2:
        time.sleep(600)


def no_trainer(number):
    if number >= 2:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(0.3)


class OwnIterator(torch.utils.data.dataloader._MultiProcessingDataLoaderIter):
    pass


class OwnLoader(DataLoader):
    def _get_iterator(self):
        return OwnIterator(self)


def report(**facts):
    print(json.dumps({"scenario": SCENARIO[0], **facts}), flush=True)


def values(batch):
    return batch.flatten().tolist()


def step(step_s=STEP_S):
    """Trains slowly, until this loader was turned often enough: then the folder has a file of its number."""
    turned = os.environ.get("UNTIL")
    time.sleep(0.02 if turned and not os.path.exists(f"{turned}/{len(KEPT) - 1}") else step_s)


def epochs(loader, count=2, step_s=STEP_S):
    for epoch in range(count):
        got, began = [], None
        for number, batch in enumerate(loader):
            got += values(batch)
            if number == 20:
                began = resident_bytes()
            step(step_s)
        del batch
        gc.collect()
        grown = resident_bytes() - (began or resident_bytes())
        # A worker that leaves has its pipes until it was joined, which takes as long as the machine is busy.
        report(epoch=epoch, got=got, descriptors=descriptors(but=("pipe",)), grown_bytes=grown)


def loader(batches, dataset=Numbers, **more):
    more = {"num_workers": WORKERS, **more}
    KEPT.append(DataLoader(dataset(batches), batch_size=BATCH, **more))
    return KEPT[-1]


def early_break(batches):
    """Breaks off in the midst of an epoch, again and again, with persistent workers and without."""
    for persistent in (False, True):
        numbers = loader(batches, persistent_workers=persistent)
        for epoch in range(6):
            got = []
            for number, batch in enumerate(numbers):
                got += values(batch)
                time.sleep(STEP_S)
                if number == batches // 8:
                    break
            report(epoch=epoch, got=got)


def begins(batches):
    """An epoch until 24 batches are under way, and what is under way as the next one begins."""
    numbers = loader(batches)
    iterator = iter(numbers)
    while len(iterator._task_info) < 24:
        next(iterator)
        time.sleep(STEP_S)
    del iterator
    iterator = iter(numbers)
    workers, under_way, got = len(iterator._workers), len(iterator._task_info), []
    for batch in iterator:
        got += values(batch)
    report(got=got, workers=workers, under_way=under_way)


def changing(batches, **more):
    """Changes its data set after each epoch's first batch: as torch has it, that takes effect where workers are made anew."""
    numbers = loader(batches, Changing, **more)
    for epoch in range(3):
        states, most = set(), 0
        iterator = iter(numbers)
        for batch in iterator:
            numbers.dataset.epoch = epoch + 1
            states |= set(batch[:, 1].tolist())
            most = max(most, len(iterator._workers))
            step()
        report(epoch=epoch, states=sorted(states), most=most)


def changing_persistent(batches):
    changing(batches, persistent_workers=True)


def failing(batches):
    """Goes on after each sample that is broken."""
    numbers = loader(batches, Failing)
    iterator, got, broken = iter(numbers), [], 0
    while True:
        try:
            got += values(next(iterator))
        except KeyError:
            broken += 1
        except StopIteration:
            break
        time.sleep(STEP_S)
    report(got=got, broken=broken)


def handled(batches):
    """Has a handler of its own for SIGTERM, which forked processes have too until torch's takes its place: here that takes a while."""
    path = os.path.join(os.environ["UNTIL"], "handled")
    signal.signal(signal.SIGTERM, lambda *_: open(path, "w").close())
    os.register_at_fork(after_in_child=lambda: time.sleep(0.3))
    epochs(loader(batches), count=1, step_s=0.01)
    report(handled=os.path.exists(path))


def interrupted(batches):
    """An interrupt at any moment ends the loop, and nothing else."""

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    ended = 0
    chance = random.Random(5)
    numbers = loader(batches)
    for _ in range(12):
        try:
            for number, _ in enumerate(numbers):
                # Not before: what an interrupt leaves of the workers that torch forks itself is torch's affair.
                if number == 0:
                    signal.setitimer(signal.ITIMER_REAL, 0.1 + 0.3 * chance.random())
                time.sleep(STEP_S)
        except KeyboardInterrupt:
            ended += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
    report(ended=ended)


def interrupted_at_its_end(batches):
    """An interrupt comes while torch waits for its workers to leave, and others are on the way."""
    numbers = loader(batches, worker_init_fn=never_there)
    iterator = iter(numbers)
    while not any(child not in [worker.pid for worker in iterator._workers] for child in children()):
        next(iterator)
        time.sleep(STEP_S)

    def interrupt(timeout=None):
        raise KeyboardInterrupt

    iterator._workers[0].join = interrupt
    sys.unraisablehook = lambda raised: report(interrupted=raised.exc_type is KeyboardInterrupt)
    # What is raised in __del__ does not end the loop, and the iterator is not there to be shut down again.
    del iterator


def exits(batches):
    """Ends with an iterator in the midst of an epoch."""
    numbers = loader(batches, persistent_workers=True)
    iterator = sys.kept = iter(numbers)
    for _ in range(batches // 2):
        next(iterator)
        time.sleep(STEP_S)
    report(workers=children())


def pinned(batches):
    """Pretends that there is a device, so that the pin-memory thread runs; only copying is left out."""
    pins = sys.modules["torch.utils.data._utils.pin_memory"]
    saved = []
    for owner in (torch.cuda, getattr(torch, "accelerator", None)):
        for name, value in (("is_available", True), ("current_device", 0), ("current_device_index", 0),
                            ("set_device", None), ("set_device_index", None)):  # fmt: skip
            if owner is not None and hasattr(owner, name):
                saved.append((owner, name, getattr(owner, name)))
                setattr(owner, name, lambda *_, value=value: value)
    plain, pins.pin_memory = pins.pin_memory, lambda data, device=None: data
    for persistent in (False, True):
        epochs(loader(batches, pin_memory=True, persistent_workers=persistent), count=1)
    pins.pin_memory = plain
    for owner, name, value in saved:
        setattr(owner, name, value)


def file_system(batches):
    torch.multiprocessing.set_sharing_strategy("file_system")
    epochs(loader(batches))
    torch.multiprocessing.set_sharing_strategy("file_descriptor")


def slow(batches):
    """Long enough at each sample that a worker can be killed while it is at its last."""
    got = []
    try:
        for batch in loader(batches, Slow):
            got += values(batch)
    except (RuntimeError, ConnectionError) as error:
        report(error=str(error).split("(")[0], got=got)
        return
    report(got=got)


def large(batches):
    """Batches of 1 MB in ten tensors each."""
    KEPT.append(DataLoader(Large(), batch_size=1, num_workers=WORKERS))
    got = []
    for number, _ in enumerate(KEPT[-1]):
        got.append(number)
        step()
    report(got=got)


def augmented(batches):
    """What the job itself draws, beside a loader whose depth changes."""
    torch.manual_seed(11)
    random.seed(11)
    drawn = []
    for batch in loader(batches, shuffle=True):
        drawn.append([values(batch), torch.rand(1).item(), random.random()])
        step()
    report(drawn=drawn)


def shared(batches):
    """Training draws from the generator that the order comes from, which is drawn from once more at an epoch's end; so does every pass of
    another loader with it. The last batch is a part of one."""
    for persistent in (False, True):
        chance = torch.Generator().manual_seed(3)
        numbers = loader(batches, shuffle=True, generator=chance, persistent_workers=persistent)
        numbers.dataset.samples -= 1
        drawn = []
        for _ in range(3):
            for batch in numbers:
                drawn.append([values(batch), torch.rand(1, generator=chance).item()])
                step()
        report(drawn=drawn)


class Growing(Numbers):
    """Of as many samples as it was given until now."""

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.tensor([index])


def growing(batches):
    """Each step adds a sample, as to a replay buffer. torch's shuffle asks for the number at an epoch's end, and goes on with some of those that came."""
    for persistent in (False, True):
        torch.manual_seed(11)
        numbers = loader(batches, Growing, shuffle=True, persistent_workers=persistent)
        drawn = []
        for _ in range(3):
            for batch in numbers:
                drawn.append(values(batch))
                numbers.dataset.samples += 1
                step()
        report(drawn=drawn)


def seeded(batches):
    torch.manual_seed(11)
    epochs(loader(batches, Seeded), count=1, step_s=0.01)


def rebuilt(batches):
    """Builds the same loader anew for every epoch, and another one for evaluation."""
    for epoch in range(3):
        got, most = [], 0
        iterator = iter(DataLoader(Numbers(batches), batch_size=BATCH, num_workers=WORKERS))
        for batch in iterator:
            got += values(batch)
            most = max(most, len(iterator._workers))
            time.sleep(0.01)
        with torch.no_grad():
            evaluation = iter(DataLoader(Numbers(3 * batches), batch_size=BATCH, num_workers=WORKERS))
            next(evaluation)
            touched = "_stallscope_workers_added" in vars(evaluation)
            workers, under_way = len(evaluation._workers), len(evaluation._task_info)
        del evaluation, iterator
        report(epoch=epoch, got=got, most=most, evaluation=[touched, workers, under_way])


def stateful(batches):
    """Takes the state after every 40th batch, and resumes from one of them."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    for dataset in (Numbers, Stream):
        def anew():
            return StatefulDataLoader(dataset(batches), batch_size=BATCH, num_workers=WORKERS)  # noqa: B023

        numbers, got, states = anew(), [], []
        for number, batch in enumerate(numbers):
            got.append(values(batch))
            if number % 40 == 39:
                states.append((number + 1, numbers.state_dict()))
            time.sleep(STEP_S)
        resumed = []
        for done, state in states[1::4]:
            again = anew()
            again.load_state_dict(state)
            resumed.append([values(batch) for batch in again] == got[done:])
        report(got=sum(got, []), resumed=resumed)


SCENARIOS = {
    "fork": lambda n: epochs(loader(n), count=1),
    "persistent": lambda n: epochs(loader(n, persistent_workers=True)),
    "out-of-order": lambda n: epochs(loader(n, in_order=False)),
    "pinned": pinned,
    "file-system": file_system,
    "spawn": lambda n: epochs(loader(n, multiprocessing_context="spawn"), count=1),
    "forkserver": lambda n: epochs(loader(n, multiprocessing_context="forkserver"), count=1),
    "stream": lambda n: epochs(loader(n, Stream)),
    "undivided": lambda n: epochs(loader(n, Undivided, num_workers=1)),
    "stream-persistent": lambda n: epochs(loader(n, Stream, persistent_workers=True)),
    "break": early_break,
    "failing": failing,
    "begins": begins,
    "changing": changing,
    "changing-persistent": changing_persistent,
    "handled": handled,
    "interrupted": interrupted,
    "exits": exits,
    "interrupted-at-its-end": interrupted_at_its_end,
    "augmented": augmented,
    "shared": shared,
    "growing": growing,
    "seeded": seeded,
    "rebuilt": rebuilt,
    "slow": slow,
    "large": large,
    "stateful": stateful,
    "particular": lambda n: epochs(loader(n, worker_init_fn=no_more_than_two), step_s=0.005),
    "in-process": lambda n: epochs(loader(n, num_workers=0)),
    "own-iterator": lambda n: epochs(OwnLoader(Numbers(n), batch_size=BATCH, num_workers=WORKERS)),
    "orphaned": lambda n: epochs(loader(n, worker_init_fn=no_trainer), step_s=0.005),
    "sleepy": lambda n: epochs(loader(n, worker_init_fn=never_there), step_s=0.005),
}


def main(scenarios):
    torch.set_num_threads(1)
    for SCENARIO[0] in sys.argv[2:]:
        scenarios[SCENARIO[0]](int(sys.argv[1]))
        # Persistent workers end with their iterator.
        for numbers in KEPT:
            numbers._iterator = None
        gc.collect()
        # That one has its workers until the interpreter ends.
        there = children() if SCENARIO[0] == "exits" else left()
        report(left=there, descriptors=descriptors())


if __name__ == "__main__":
    main(SCENARIOS)
