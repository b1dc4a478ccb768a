"""The job of `make bench-overhead`: torchvision's ImageFolder through a DataLoader into a small model.

With --gpu-ms the model is on the GPU, which works that much longer a step, and each step reads its loss. Prints a line of JSON for each epoch, and starts an epoch for each line that it reads: `bare` with torch's own
functions where a profiler put others in their place, in its workers too, `new` with new workers, `bare new` with both. Nothing here knows
of a profiler otherwise, except for --profile, which turns torch's own on.
"""

import argparse
import functools
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.utils.data.dataloader as torch_loader
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

BARE, HOOKED = signal.SIGUSR1, signal.SIGUSR2


def processes(workers) -> list[int]:
    return [os.getpid(), *(worker.pid for worker in workers)]


def cpu_ns(pids: list[int]) -> int:
    """CPU time of every live thread."""
    return sum(
        int(schedstat.read_text().split()[0])
        for pid in pids
        for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


def switches(pids: list[int]) -> int:
    """How often every live thread left its CPU."""
    return sum(
        int(line.split()[1])
        for pid in pids
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if "ctxt_switches" in line
    )


def read_bytes(pids: list[int]) -> int:
    """Bytes that had to come from storage."""
    return sum(int(Path(f"/proc/{pid}/io").read_text().split("read_bytes: ")[1].split()[0]) for pid in pids)


def replaced() -> list[tuple]:
    """Functions of torch's loader that are others than torch's: who has them, their names, and both."""
    owners = [value for value in vars(torch_loader).values() if isinstance(value, type)]
    owners += [torch_loader._utils.worker, torch_loader._utils.fetch]
    found = []
    for owner in dict.fromkeys(owners):
        for name, value in list(vars(owner).items()):
            static = isinstance(value, staticmethod)
            function = value.__func__ if static else value
            written_in = getattr(getattr(function, "__code__", None), "co_filename", "")
            original = getattr(function, "__wrapped__", None)
            if "/stallscope/_hooks/" in written_in and original is not None:
                found.append((owner, name, value, staticmethod(original) if static else original))
    return found


def choose(hooks: list[tuple], bare: bool):
    for owner, name, hook, original in hooks:
        setattr(owner, name, original if bare else hook)


def follow(chosen: int, apart, worker: int):
    """In a new worker: chooses at each signal, and answers with a byte. Its two records for each batch are written in any case."""
    aside = {}

    def choose_here(number: int, frame):
        while "fetcher" not in frame.f_locals:
            frame = frame.f_back
        # Torch's own `fetch` is its class's.
        of_fetcher = vars(frame.f_locals["fetcher"])
        taken, given = (of_fetcher, aside) if number == BARE else (aside, of_fetcher)
        if "fetch" in taken:
            given["fetch"] = taken.pop("fetch")
        os.write(chosen, b"b" if number == BARE else b"h" if "fetch" in of_fetcher else b"-")

    signal.signal(BARE, choose_here)
    signal.signal(HOOKED, choose_here)
    if apart:
        apart(worker)


def choose_everywhere(hooks: list[tuple], bare: bool, workers, chosen: int) -> bool:
    """In this process and in workers that wait for an epoch; whether all did."""
    choose(hooks, bare)
    for worker in workers:
        os.kill(worker.pid, BARE if bare else HOOKED)
    answers = [os.read(chosen, 1) for _ in workers]
    return all(answer == (b"b" if bare else b"h") for answer in answers)


def keep_apart():
    """Leaves a core to the trainer, which spins while it waits for the GPU, and gives workers what to call for the others: a worker
    that happens to be the other thread of that core is a third slower."""
    cpus = os.sched_getaffinity(0)
    first = min(cpus)
    listed = Path(f"/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list").read_text()
    bounds = [part.split("-") for part in listed.strip().split(",")]
    core = {cpu for ends in bounds for cpu in range(int(ends[0]), int(ends[-1]) + 1)} & cpus
    os.sched_setaffinity(0, core)
    return functools.partial(stay_on, cpus - core or cpus)


def stay_on(cpus: set[int], _worker: int):
    os.sched_setaffinity(0, cpus)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--gpu-ms", type=float, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    # Where the collector's counters happen to stand when workers fork decides a third of this job's speed: any
    # import before moves them, ours too. Off, the job is the same with and without a watcher.
    gc.disable()
    images = datasets.ImageFolder(args.data, transforms.ToTensor())
    chosen, choosing = os.pipe()

    def new_loader() -> DataLoader:
        return DataLoader(
            images, args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=True, drop_last=True,
            pin_memory=device is not None, worker_init_fn=functools.partial(follow, choosing, apart),
        )

    device = apart = None
    if args.gpu_ms:
        apart = keep_apart()
        sys.path.insert(0, str(Path(__file__).parents[1] / "truth"))
        from device import gpu

        device = gpu()
    loader = new_loader()
    model = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.LazyLinear(len(images.classes)))
    model(images[0][0][None])
    if device:
        model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def epoch() -> int:
        samples = 0
        for batch, labels in loader:
            if device:
                batch, labels = batch.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if device:
                device.submit_now(int(args.gpu_ms * 1000))
                loss.item()
            samples += len(labels)
        return samples

    def measured() -> dict:
        workers = loader._iterator._workers
        for path, _ in images.samples:
            Path(path).read_bytes()
        pids = processes(workers)
        bytes_before, switches_before = read_bytes(pids), switches(pids)
        cpu_before, start = cpu_ns(pids), time.monotonic()
        if args.profile:
            with torch.profiler.profile():
                samples = epoch()
        else:
            samples = epoch()
        seconds = time.monotonic() - start
        return {
            "seconds": seconds,
            "cpu_s": (cpu_ns(pids) - cpu_before) / 1e9,
            "samples": samples,
            "read_bytes": read_bytes(pids) - bytes_before,
            "switches": switches(pids) - switches_before,
            "batches": samples // args.batch_size,
            "pid": os.getpid(),
        }

    epoch()
    hooks = replaced()
    print(json.dumps({"pid": os.getpid(), "hooks": len(hooks)}), flush=True)
    for line in sys.stdin:
        wanted = line.split()
        if "new" in wanted:
            choose(hooks, "bare" in wanted)
            loader = None
            loader = new_loader()
            epoch()
        as_wanted = choose_everywhere(hooks, "bare" in wanted, loader._iterator._workers, chosen)
        print(json.dumps({**measured(), "as_wanted": as_wanted}), flush=True)


if __name__ == "__main__":
    main()
