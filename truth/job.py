"""A training program that knows what it does to itself and writes it down (see log.py).

It is an ordinary user of torch's DataLoader; nothing here knows of the profiler.
"""

import argparse
import contextlib
import functools
import os
import queue
import socket
import threading
import time
from dataclasses import dataclass

import sources
import torch
from checkpoints import Checkpoints
from device import fake, gpu
from log import Did, Phase, log, stopped
from passage import ask_for_descriptors, between, share_descriptors
from torch.utils.data import DataLoader, Dataset
from work import Helper, Trainer, burn, burn_on, burn_silently

MS = 1_000_000
_batches_made = 0


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=8, help="of training, first step included")
    add("--source", choices=sources.KINDS, default="read")
    add("--folder", default=".", help="made by sources.make")
    add("--sample-bytes", type=int, default=65536)
    add("--samples", type=int, default=1024)
    add("--port", type=int, default=0, help="of server.py")
    add("--net-ms", type=float, default=4)
    add("--workers", type=int, default=2)
    add("--start", choices=["fork", "spawn", "forkserver"], default="fork")
    add("--persistent", action="store_true")
    add("--thread", action="store_true", help="iterate the loader in a thread, as background generators do")
    add("--pin", action="store_true", help="with a pin-memory thread; without an accelerator it copies")
    add("--prefetch", type=int, default=2)
    add("--batch", type=int, default=8)
    add("--prep-ms", type=float, default=1, help="CPU a sample, on average")
    add("--prep-silent", action="store_true", help="prepare without a system call in between, as decoders do")
    add("--worker-cpu", type=int, default=-1, help="the only CPU that workers may use")
    add("--trainer-cpu", type=int, default=-1)
    add("--skew", type=float, default=1, help="every fourth batch is that much dearer to prepare")
    add("--compute-ms", type=float, default=10, help="CPU a step")
    add("--epoch-batches", type=int, default=10**6)
    add("--look", action="store_true", help="take a batch by an iterator of its own before each epoch")
    add("--look-every", type=int, default=0, metavar="STEPS", help="take one of a second loader every so many steps")
    add("--evaluate", type=int, default=0, help="batches of evaluation after each epoch")
    add("--with-gradients", action="store_true", help="evaluate with gradients on, as scripts do that forget to turn them off")
    add("--loaders", type=int, default=1, help="used in turn")
    add("--checkpoint", choices=["none", "loop", "fsync", "thread", "process", "safetensors", "dcp"], default="none")
    add("--checkpoint-every", type=int, default=20)
    add("--checkpoint-mb", type=int, default=32)
    add("--lock-ms", type=float, default=0, help="the loop sleeps on a lock of its own")
    add("--request-ms", type=float, default=0, help="the loop makes a request of its own")
    add("--sleep-ms", type=float, default=0, help="the loop sleeps between steps")
    add("--busy-thread", action="store_true", help="a thread beside training uses a CPU all along")
    add("--helper-ms", type=float, default=0, help="CPU a step of a thread that the loop sleeps for")
    add("--slow-rank", type=int, default=-1, help="reduce gradients over ranks; this one is four times as slow")
    add("--slow-in", choices=["compute", "fetch"], default="compute")
    add("--device-ms", type=float, default=0, help="each step gives an asynchronous device that much to do")
    add("--gpu", action="store_true", help="that device is the GPU, which each batch is copied to")
    add("--results", action="store_true", help="each step waits for what its device made of it, as one that logs its loss does")
    return parser.parse_args()


@dataclass
class TruthDataset(Dataset):
    source: sources.Source
    prep_ms: float
    skew: float
    batch: int
    length: int
    silent: bool

    def __len__(self):
        return self.length

    def __getitem__(self, index: int):
        mine = log()
        mine.mark(Did.PREP if mine.in_batch else Did.IDLE)
        mine.in_batch = True
        data = self.source.fetch(index * 7919)
        mine.mark(Did.FETCH)
        jitter = 0.5 + (index * 2654435761 % 1000) / 1000
        dearer = self.skew if index // self.batch % 4 == 3 else 1
        (burn_silently if self.silent else burn)(mine, int(self.prep_ms * MS * jitter * dearer), Did.PREP)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8), index


def collate(samples):
    """Stacks, and stamps the batch with a token that names it in its producer's log."""
    global _batches_made
    batch = torch.stack([data for data, _ in samples]), torch.tensor([index for _, index in samples])
    _batches_made += 1
    token = threading.get_native_id() << 32 | _batches_made
    stamped = between(token, batch)
    log().mark(Did.PREP)
    log().mark(Did.READY, token)
    log().in_batch = False
    return stamped


def begin_worker(cpu: int, _worker: int):
    if cpu >= 0:
        os.sched_setaffinity(0, {cpu})
    share_descriptors()


def emulate_pinning():
    """Lets the pin-memory thread run where there is no accelerator: pinning becomes a copy."""
    from torch.utils.data import _utils

    if torch.accelerator.is_available():
        return
    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = lambda *_: None
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda *_: None

    def pin(batch, device=None):
        return tuple(part.clone() if isinstance(part, torch.Tensor) else part for part in batch)

    _utils.pin_memory.pin_memory = pin


class BackgroundLoader:
    """Iterates a loader in a thread and hands its batches over through a queue."""

    def __init__(self, loader: DataLoader, depth: int):
        self.loader, self.depth = loader, depth

    def __iter__(self):
        batches = queue.Queue(self.depth)
        threading.Thread(target=self.fill, args=(batches,), daemon=True).start()
        while (batch := batches.get()) is not None:
            yield batch

    def fill(self, batches: queue.Queue):
        for batch in self.loader:
            batches.put(batch)
        batches.put(None)


def make_loader(options: argparse.Namespace, batches: int) -> DataLoader | BackgroundLoader:
    kind = sources.KINDS[options.source]
    extra = (options.port, int(options.net_ms * MS)) if options.source == "net" else ()
    source = kind(options.folder, options.sample_bytes, options.samples, *extra)
    length = batches * options.batch
    dataset = TruthDataset(source, options.prep_ms, options.skew, options.batch, length, options.prep_silent)
    parallel = {}
    if options.workers:
        parallel = {
            "multiprocessing_context": options.start,
            "prefetch_factor": options.prefetch,
            "persistent_workers": options.persistent,
        }
    loader = DataLoader(
        dataset,
        batch_size=options.batch,
        num_workers=options.workers,
        pin_memory=options.pin,
        collate_fn=collate,
        worker_init_fn=functools.partial(begin_worker, options.worker_cpu),
        **parallel,
    )
    return BackgroundLoader(loader, options.prefetch) if options.thread else loader


def batches(iterator, number: int, phase: Phase):
    """Yields what the loader hands over, each hand-over in the log, and the iterator's end, however it comes."""
    try:
        while True:
            log().mark(Did.COMPUTE)
            log().mark(Did.ENTER, number)
            batch = next(iterator)
            log().mark(Did.EXIT, batch[-1].token, phase)
            yield batch
    except StopIteration:
        pass
    except GeneratorExit:
        log().mark(Did.COMPUTE)
        # Waits for the workers to end.
        del iterator
    finally:
        log().mark(Did.END, number)


def look_at(loader, number: int):
    """As scripts do that want to know a batch's shape."""
    log().mark(Did.COMPUTE)
    log().mark(Did.ENTER, number)
    iterator = iter(loader)
    batch = next(iterator)
    log().mark(Did.EXIT, batch[-1].token, Phase.LOOK)
    # Waits for the workers to end.
    del iterator
    log().mark(Did.END, number)


class Loop:
    """The training loop and what it does beside training."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.compute_ns = int(options.compute_ms * MS)
        self.trainer = Trainer(extra_mb=options.checkpoint_mb if options.checkpoint != "none" else 0)
        self.checkpoints = Checkpoints(options.checkpoint, self.trainer)
        self.lock = threading.Lock()
        self.connection = socket.create_connection(("127.0.0.1", options.port)) if options.request_ms else None
        self.helper = Helper(int(options.helper_ms * MS)) if options.helper_ms else None
        self.device = (gpu() if options.gpu else fake()) if options.device_ms else None
        self.steps = 0
        self.stop = None
        self.looked_at = None

    def run(self):
        loaders = [make_loader(self.options, self.options.epoch_batches) for _ in range(self.options.loaders)]
        evaluation = make_loader(self.options, self.options.evaluate) if self.options.evaluate else None
        self.looked_at = make_loader(self.options, self.options.epoch_batches) if self.options.look_every else None
        while self.train(loaders):
            if evaluation:
                self.evaluate(evaluation)
        self.checkpoints.close()

    def train(self, loaders) -> bool:
        """One epoch; whether there is time for another."""
        for number, loader in enumerate(loaders if self.options.look else []):
            look_at(loader, number)
        running = [batches(iter(loader), number, Phase.TRAINING) for number, loader in enumerate(loaders)]
        for taken in zip(*running):
            self.stop = self.stop or time.monotonic() + self.options.seconds
            if self.device:
                self.device.take(taken[0][1])
            self.step()
            if self.agree_to_stop():
                for one in running:
                    one.close()
                return False
        return True

    def step(self):
        options, mine = self.options, log()
        self.trainer.step(mine, self.compute_ns)
        if self.helper:
            self.helper.help(mine)
        if self.device:
            mine.mark(Did.DEVICE, self.device.submit(int(options.device_ms * MS)))
            if options.results:
                self.device.result()
        if options.slow_rank >= 0:
            torch.distributed.all_reduce(torch.ones(1024))
            mine.mark(Did.COLLECTIVE, self.steps)
        if options.lock_ms:
            self.sleep_on_lock(options.lock_ms / 1000)
            mine.mark(Did.SLEEP)
        if options.sleep_ms:
            time.sleep(options.sleep_ms / 1000)
            mine.mark(Did.SLEEP)
        if self.connection:
            sources.request(self.connection, int(options.request_ms * MS), 4096)
            mine.mark(Did.SLEEP)
        self.steps += 1
        if options.checkpoint != "none" and self.steps % options.checkpoint_every == 0:
            self.checkpoints.save()
        if self.looked_at and self.steps % options.look_every == 0:
            look_at(self.looked_at, options.loaders)

    def sleep_on_lock(self, seconds: float):
        taken = threading.Event()

        def hold():
            with self.lock:
                taken.set()
                time.sleep(seconds)

        threading.Thread(target=hold).start()
        taken.wait()
        with self.lock:
            pass

    def evaluate(self, loader):
        self.trainer.model.eval()
        with contextlib.nullcontext() if self.options.with_gradients else torch.no_grad():
            for _ in batches(iter(loader), self.options.loaders, Phase.EVALUATION):
                self.trainer.step(log(), self.compute_ns, train=False)
        self.trainer.model.train()

    def agree_to_stop(self) -> bool:
        late = time.monotonic() > self.stop or stopped()
        if self.options.slow_rank < 0:
            return late
        # All ranks have to leave at the same step.
        votes = torch.tensor([float(late)])
        torch.distributed.all_reduce(votes)
        log().mark(Did.COLLECTIVE, self.steps)
        return bool(votes.item())


def main():
    options, rank = flags(), int(os.environ.get("RANK", 0))
    torch.set_num_threads(1)
    log().mark(Did.RANK, rank)
    if rank == options.slow_rank and options.slow_in == "compute":
        options.compute_ms *= 4
    elif rank == options.slow_rank:
        options.net_ms *= 4
    if options.pin:
        emulate_pinning()
    ask_for_descriptors()
    if options.busy_thread:
        threading.Thread(target=burn_on, daemon=True).start()
    if options.trainer_cpu >= 0:
        os.sched_setaffinity(0, {options.trainer_cpu})
    with contextlib.ExitStack() as stack:
        if options.slow_rank >= 0 or options.checkpoint == "dcp":
            torch.distributed.init_process_group("gloo", **({} if "RANK" in os.environ else alone()))
            stack.callback(torch.distributed.destroy_process_group)
        log().mark(Did.COMPUTE)
        Loop(options).run()


def alone() -> dict:
    """A process group of one, without a port that could be taken."""
    return {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}


if __name__ == "__main__":
    main()
