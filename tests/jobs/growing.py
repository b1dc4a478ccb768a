"""A training script whose data comes slowly and whose workers grow; runs for so many seconds, or until the file `stop` is there.

In a memory cgroup that has enough for the script's own workers and not for more. Ends with its account: how many batches
there were, and whether every sample came exactly once in each whole epoch.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

BEGUN = time.monotonic()
MIB = 1 << 20
grows_from = None


def early(seconds, speed):
    return seconds * speed


def late(_seconds, speed):
    """All workers at once, from the moment at which the file `grow` is there."""
    global grows_from
    if grows_from is None and Path("grow").exists():
        grows_from = time.monotonic()
    return 0 if grows_from is None else (time.monotonic() - grows_from) * speed


def stepwise(seconds, speed):
    return seconds // 10 * 10 * speed


SHAPES = {"early": early, "late": late, "stepwise": stepwise}


class Growing(Dataset):
    """Keeps ever more; waits for each sample as for a file far away."""

    def __init__(self, shape, speed, most, length):
        self.shape, self.speed, self.most = SHAPES[shape], speed * MIB, most * MIB
        self.length = length
        self.kept, self.bytes, self.begun = [], 0, None

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.begun = self.begun or time.monotonic()
        more = min(int(self.shape(time.monotonic() - self.begun, self.speed)), self.most) - self.bytes
        if more > 0:
            self.kept.append(b"\1" * more)
            self.bytes += more
        time.sleep(0.01)
        return torch.tensor([index])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--speed", type=float, default=10, help="of a worker, in MiB/s")
    parser.add_argument("--most", type=int, default=300, help="of a worker, in MiB")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--samples", type=int, default=4000, help="in an epoch")
    parser.add_argument("--anew", action="store_true", help="workers of their own for each epoch")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = Growing(arguments.shape, arguments.speed, arguments.most, arguments.samples)
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=arguments.workers, persistent_workers=not arguments.anew)
    batches = wrong = 0
    over = False
    while not over:
        seen = []
        for batch in loader:
            # A device at work.
            time.sleep(0.01)
            seen += batch.flatten().tolist()
            batches += 1
            over = time.monotonic() > BEGUN + arguments.seconds or Path("stop").exists()
            if over:
                break
        else:
            wrong += sorted(seen) != list(range(len(data)))
    print(f"{batches} batches, {wrong} epochs of them wrong", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
