"""`make bench-pack-accuracy`: what a network learns from class-sorted data with each shuffle of a pack.

48 MB of made-up samples in 20 classes, of which each is a folder, packed in that order (`--in-order`): a chunk has samples of one class or two. A small network is
trained three times over them with each order, by plain SGD, and tested on samples of the same kind; eight seeds each. What the orders predict and have is their
design effect by class. An order that is mixed less has to cost accuracy, else the data would not tell; a `Shuffle(1.05)` may cost half a point against a full shuffle.
"""

import argparse
import random
import shutil
import subprocess
import sys
from statistics import fmean, stdev

from table import ROOT, Row, machine, markdown, summary, write

sys.path.insert(0, str(ROOT / "target" / "python"))
import torch  # noqa: E402

import stallscope  # noqa: E402

WORK = ROOT / "target" / "bench" / "pack-accuracy"
PROGRAM = ROOT / "target" / "release" / "stallscope"
CLASSES, OF_CLASS, FEATURES, INFORMATIVE = 20, 600, 1024, 64
BATCH, EPOCHS = 64, 3
MOST_LOST = 0.5
# Highest design effect of a `Shuffle`; None: no shuffle of ours.
ORDERS = {
    "full shuffle": None,
    "Shuffle(1.05)": 1.05,
    "Shuffle(8)": 8.0,
    "Shuffle(20)": 20.0,
    "chunks at random, in order within": None,
}
FULL = "full shuffle"


def samples(seed: int, of_class: int):
    """Values (classes x of_class, FEATURES) float32, and classes, sorted."""
    means = torch.randn(CLASSES, INFORMATIVE, generator=torch.Generator().manual_seed(0)) * 0.33
    draw = torch.Generator().manual_seed(seed)
    classes = torch.arange(CLASSES).repeat_interleave(of_class)
    values = torch.randn(len(classes), FEATURES, generator=draw)
    values[:, INFORMATIVE:] *= 0.1
    values[:, :INFORMATIVE] += means[classes]
    return values, classes


def packed():
    """The pack, made anew."""
    shutil.rmtree(WORK, ignore_errors=True)
    values, classes = samples(1, OF_CLASS)
    for number, (value, label) in enumerate(zip(values, classes.tolist())):
        path = WORK / "files" / f"{label:02}" / f"{number:05}.f32"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.numpy().tobytes())
    command = [PROGRAM, "pack", WORK / "files", "-o", WORK / "pack", "--in-order", "--chunk-size", "4MiB"]
    subprocess.run(command, check=True, capture_output=True)
    return stallscope.PackedDataset(WORK / "pack")


class Samples(torch.utils.data.Dataset):
    def __init__(self, pack):
        self.pack = pack

    def __len__(self):
        return len(self.pack)

    def __getitem__(self, index):
        return torch.frombuffer(bytearray(self.pack[index]), dtype=torch.float32), self.pack.label(index)


def loader_of(order: str, pack, seed: int):
    """The loader, and its `Shuffle`'s sampler where it has one."""
    if order == FULL:
        return torch.utils.data.DataLoader(Samples(pack), BATCH, shuffle=True, drop_last=True), None
    if ORDERS[order] is None:
        sampler = ChunksAtRandom(pack, seed)
        return torch.utils.data.DataLoader(Samples(pack), BATCH, sampler=sampler, drop_last=True), None
    sampler = pack.shuffled(stallscope.Shuffle(ORDERS[order], "256MiB", seed=seed), BATCH, num_workers=0)
    return torch.utils.data.DataLoader(Samples(pack), BATCH, sampler=sampler, drop_last=True), sampler


class ChunksAtRandom:
    """As loaders do that shuffle shards alone."""

    def __init__(self, pack, seed: int):
        self.order = list(pack.in_chunk_order())
        self.draw = random.Random(seed)

    def __iter__(self):
        each = len(self.order) // 12
        chunks = [self.order[at : at + each] for at in range(0, len(self.order), each)]
        self.draw.shuffle(chunks)
        return iter(sum(chunks, []))

    def __len__(self):
        return len(self.order)


def trained(order: str, pack, seed: int, test):
    """Accuracy on the test samples, in per cent; predicted and measured design effect of the last epoch, where there are."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader, sampler = loader_of(order, pack, seed)
    for _ in range(EPOCHS):
        for values, classes in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(values), classes).backward()
            optimizer.step()
    values, classes = test
    with torch.no_grad():
        accuracy = 100 * (model(values).argmax(1) == classes).float().mean().item()
    return accuracy, sampler.predicted if sampler else None, sampler.measured if sampler else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(2)
    pack, test = packed(), samples(2, 500)
    rows, body, of_full = [], [], None
    for order in ORDERS:
        outcomes = [trained(order, pack, seed, test) for seed in range(args.seeds)]
        accuracies = [accuracy for accuracy, _, _ in outcomes]
        of_full = of_full or accuracies
        lost = fmean(of_full) - fmean(accuracies)
        spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
        _, predicted, measured = outcomes[0]
        effects = [f"{predicted:.2f}", f"{measured:.2f}"] if predicted else ["", ""]
        body.append([order, *effects, f"{fmean(accuracies):.1f} ± {spread:.1f}", f"{-lost:+.1f}"])
        bar = (f"at most {MOST_LOST}", lost <= MOST_LOST) if ORDERS[order] == 1.05 else ()
        rows += [Row(order, "accuracy", fmean(accuracies), "%"), Row(order, "lost", lost, "points", *bar)]
        print(f"{order}: {fmean(accuracies):.1f}%", flush=True)
    if rows[-1].value <= MOST_LOST:
        print("bench-pack-accuracy: an order without a shuffle costs nothing here, so that nothing is shown", file=sys.stderr)
        return 1
    print(markdown(["order", "predicted", "measured", "accuracy, %", "points"], body))
    print(f"Mean and standard deviation over {args.seeds} seeds. On {machine()}.")
    print(summary(rows))
    print(write("pack-accuracy", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
