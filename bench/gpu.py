"""`make bench-gpu`: what a checkpoint of state on a GPU costs the loop, and what measuring costs a step of 10 ms there. Needs a GPU,
and root for evidence from the kernel.

Checkpoints as in bench-checkpoint: one process, in turns; the limit is one copy of the state into pinned memory. Measuring
as in bench-overhead: one job in which all of ours is switched on and off in turns.
"""

import argparse
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import warnings

import torch
from checkpoint import CheckFreq, DcpAsync, DcpProcess, Loop, Ours, TorchSave, dist, measure
from contenders import HEADLINE, STALLSCOPE, WORK, BenchFailed, Contender, Switched
from images import keep_in_memory, make_images
from overhead import Table
from overhead import measure as measure_pairs
from table import Row, markdown, summary, write

CONTENDERS = [Ours, TorchSave, DcpAsync, DcpProcess, CheckFreq]
CPUS = len(os.sched_getaffinity(0))
STEP = ["--gpu-ms", "10"]
# With one worker, training waits for each batch.
LOADERS = [(max(2, CPUS // 2), "batches ready"), (1, "waits for batches")]


class ShimSwitched(Switched):
    """Without evidence from the kernel, where there is none."""

    OPTIONS = ("--no-kernel",)

    def serve(self):
        return None

    def switch(self, on: bool):
        self.process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)


def kernel_evidence() -> bool:
    done = subprocess.run([STALLSCOPE, "run", "--quiet", "--no-shim", "-o", WORK / "try.stall", "--", "true"], capture_output=True, text=True)
    print(f"Evidence from the kernel: {done.stderr.strip() or 'yes'}")
    return done.returncode == 0 and not done.stderr.strip()


def pinned_copy_ms(loop: Loop) -> float:
    """What copying the state once into memory that the driver has pinned takes."""
    tensors = [value.detach() for value in loop.flat().values()]
    targets = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors]
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for target, tensor in zip(targets, tensors):
            target.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times) * 1e3


def checkpoints(megabytes: int, rounds: int) -> tuple[list[Row], list[list[str]]]:
    loop, folder = Loop(megabytes, "cuda"), WORK / "checkpoints-gpu"
    shutil.rmtree(folder, ignore_errors=True)
    limit_ms = pinned_copy_ms(loop)
    contenders = []
    for kind in CONTENDERS:
        (folder / kind.name).mkdir(parents=True)
        contenders.append(kind(loop, folder / kind.name))
    measured = {contender.name: [] for contender in contenders}
    try:
        # The first makes memory, threads and processes; it is not counted.
        for number in range(rounds + 1):
            for contender in contenders[number % len(contenders) :] + contenders[: number % len(contenders)]:
                torch.cuda.synchronize()
                figures = measure(loop, contender)
                if number:
                    measured[contender.name].append(figures)
    finally:
        for contender in contenders:
            contender.close()
        shutil.rmtree(folder)
    case = f"{megabytes} MB on the GPU"
    rows, lines = [Row(case, "one copy into pinned memory", limit_ms, "ms")], [[case, "one copy into pinned memory", f"{limit_ms:.1f}", "", ""]]
    for name, figures in measured.items():
        medians = [statistics.median(column) for column in zip(*figures)]
        lines.append([case, name, *(f"{value:.1f}" for value in medians)])
        rows += [Row(f"{case}, {name}", what, value, "ms") for what, value in zip(("blocked", "spread", "total"), medians)]
    return rows, lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="200,1000", help="of the state, in MB")
    parser.add_argument("--rounds", type=int, default=7, help="of saves")
    parser.add_argument("--seconds", type=float, default=HEADLINE["seconds"], help="for each job that is measured and not measured in turns")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench-gpu: there is no GPU here; run it on a machine with one")
    warnings.simplefilter("ignore")
    WORK.mkdir(parents=True, exist_ok=True)
    print(f"{torch.cuda.get_device_name()}, {CPUS} CPUs, torch {torch.__version__}")
    make_images(WORK / "images")
    keep_in_memory(WORK / "images")
    rows, lines = [], []
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29577"))
    dist.init_process_group("cpu:gloo,cuda:gloo", rank=0, world_size=1)
    for megabytes in map(int, options.sizes.split(",")):
        found, body = checkpoints(megabytes, options.rounds)
        rows, lines = rows + found, lines + body
    dist.destroy_process_group()
    table, failures = Table(), []
    kernel = kernel_evidence()
    ways = [("kernel + shim", Switched)] if kernel else []
    headline = {**HEADLINE, "seconds": options.seconds, "epochs": 5}
    for (name, kind), (workers, what) in itertools.product([*ways, ("shim", ShimSwitched)], LOADERS):
        contender = Contender(
            f"{name}, step of 10 ms, {what}",
            lambda kind=kind, workers=workers: kind(*STEP, "--workers", str(workers)),
            bar=0.01,
            **headline,
        )
        try:
            table.add(contender, measure_pairs(contender, 1000))
        except BenchFailed as error:
            table.miss(contender)
            failures.append(f"{contender.name}: {error}")
    print("\nBeside the same job unwatched, medians of pairs:\n")
    print(markdown(Table.HEADER, table.lines))
    print("\nA save, medians, ms:\n")
    print(markdown(["state", "saved by", "blocked", "spread", "total"], lines))
    rows += table.rows
    print(summary(rows))
    print(f"Written to {write('gpu', rows)}")
    if failures:
        sys.exit("bench-gpu: could not be measured:\n" + "\n".join(failures))


if __name__ == "__main__":
    main()
