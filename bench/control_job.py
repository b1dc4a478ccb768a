"""The job of `make bench-control` and `make bench-node`: torchvision's ImageFolder through a DataLoader, into a device that is a timed wait.

A wait instead of a network takes no CPU from the loader, as a device does. Writes its own account: one line of JSON a
step, of when it ended (monotonic, s) and how many samples it had.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Decoded:
    """Costs CPU time in the worker, as a heavier augmentation would."""

    def __init__(self, decode_ms: float):
        self.decode_s = decode_ms / 1000

    def __call__(self, image):
        until = time.thread_time() + self.decode_s
        while time.thread_time() < until:
            pass
        return image


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60, help="ends after so long")
    parser.add_argument("--steps", type=float, default=math.inf, help="ends after so many, if that is sooner")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=2, help="batches a worker, as torch's prefetch_factor")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=40, help="what the device takes for a batch")
    parser.add_argument("--decode-ms", type=float, default=0, help="CPU time of a sample beyond reading and decoding it")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    transform = transforms.Compose(
        [Decoded(args.decode_ms), transforms.RandomResizedCrop(64, scale=(0.5, 1)), transforms.ToTensor()]
    )
    loader = DataLoader(
        datasets.ImageFolder(args.data, transform),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        prefetch_factor=args.prefetch,
        persistent_workers=True,
        drop_last=True,
    )
    over, made = time.monotonic() + args.seconds, 0
    with args.log.open("w", buffering=1) as log:
        while time.monotonic() < over and made < args.steps:
            for images, _ in loader:
                time.sleep(args.step_ms / 1000)
                now, made = time.monotonic(), made + 1
                log.write(json.dumps({"s": now, "samples": len(images)}) + "\n")
                if now >= over or made >= args.steps:
                    break


if __name__ == "__main__":
    main()
