"""Loops whose samples are made in a thread that is not the main one; prints what each saw, as JSON."""

import json
import os
import sys
import threading
from functools import partial

import torch

import stallscope


class Plain:
    """Samples that draw nothing."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.decode(self.fetch(index))

    def fetch(self, index):
        return bytes([index]) * 8

    def decode(self, fetched):
        return torch.frombuffer(bytearray(fetched), dtype=torch.uint8).float()


class Random(Plain):
    def decode(self, fetched):
        return super().decode(fetched) + torch.rand(8)


def mask():
    return torch.nn.functional.dropout(torch.ones(64)).tolist()


def beside(make_loader, dataset, **options):
    """Masks that the main thread draws while another makes batches, one within each sample and one between two; and the batches."""
    torch.manual_seed(0)
    masks, batches, turn, drawn, ours = [], [], threading.Event(), threading.Event(), os.getpid()

    def draw():
        # The data set is tried in a child, in which no other thread draws.
        if os.getpid() != ours:
            return
        turn.set()
        drawn.wait(60)
        drawn.clear()

    class Drawing(dataset):
        def decode(self, fetched):
            sample = super().decode(fetched)
            draw()
            return sample

    loader = make_loader(Drawing(), batch_size=8, shuffle=True, **options)

    def make():
        for _ in range(3):
            for batch in loader:
                batches.append(batch.tolist())
                draw()
        ended.set()

    ended = threading.Event()
    threading.Thread(target=make, daemon=True).start()
    while not ended.is_set():
        if turn.wait(0.05):
            turn.clear()
            masks.append(tuple(mask()))
            drawn.set()
    return masks, batches


def within(make_loader, dataset):
    """Batches and masks of a loop that runs as a whole in a thread."""
    seen = []

    def train():
        torch.manual_seed(0)
        for _ in range(2):
            for batch in make_loader(dataset(), batch_size=8):
                seen.append((batch.tolist(), mask()))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    return seen


def at_once(make_loader):
    """The generator's state after two threads have made samples that draw nothing, each within the other's."""
    torch.manual_seed(0)
    meet = threading.Barrier(2)

    class Meeting(Plain):
        def __getitem__(self, index):
            meet.wait(60)
            sample = super().__getitem__(index)
            meet.wait(60)
            return sample

    loaders = [make_loader(Meeting(), batch_size=8) for _ in range(2)]
    threads = [threading.Thread(target=list, args=(loader,)) for loader in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return torch.get_rng_state().tolist()


plain = torch.utils.data.DataLoader
makers = {"": stallscope.DataLoader, "cached": partial(stallscope.DataLoader, cache="8MiB")}
print(
    json.dumps(
        {
            "masks": [len(set(beside(plain, dataset)[0])) for dataset in (Plain, Random)],
            "like torch": {
                f"{function.__name__} {name} {[one.__name__ for one in dataset]}": function(ours, *dataset) == function(plain, *dataset)
                for function, dataset in [(one, (each,)) for one in (beside, within) for each in (Plain, Random)] + [(at_once, ())]
                for name, ours in makers.items()
            },
        }
    )
)
sys.stdout.flush()
