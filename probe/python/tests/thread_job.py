"""Loops whose samples are made in a thread that is not the main one; prints what each saw, as JSON."""

import json
import os
import sys
import threading

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


def beside(dataset, **options):
    """Masks that the main thread draws while another makes batches, one within each sample and one between two."""
    torch.manual_seed(0)
    masks, turn, drawn, ours = [], threading.Event(), threading.Event(), os.getpid()

    def draw():
        # The data set is tried in a child, in which no other thread draws.
        if os.getpid() != ours:
            return
        turn.set()
        drawn.wait(10)
        drawn.clear()

    class Drawing(dataset):
        def decode(self, fetched):
            sample = super().decode(fetched)
            draw()
            return sample

    loader = stallscope.DataLoader(Drawing(), batch_size=8, shuffle=True, **options)

    def make():
        for _ in range(3):
            for _ in loader:
                draw()
        ended.set()

    ended = threading.Event()
    threading.Thread(target=make, daemon=True).start()
    while not ended.is_set():
        if turn.wait(0.05):
            turn.clear()
            masks.append(tuple(mask()))
            drawn.set()
    return {"masks": len(masks), "distinct": len(set(masks))}


def within(make_loader, dataset):
    """Batches and masks of a loop that runs as a whole in a thread."""
    seen = []

    def train():
        torch.manual_seed(0)
        for _ in range(2):
            for batch in make_loader(dataset, batch_size=8):
                seen.append((batch.tolist(), mask()))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    return seen


cached = {"cache": "8MiB"}
print(
    json.dumps(
        {
            "beside": {
                f"{dataset.__name__} {sorted(options)}": beside(dataset, **options)
                for dataset in (Plain, Random)
                for options in ({}, cached)
            },
            "like torch": within(torch.utils.data.DataLoader, Plain())
            == within(stallscope.DataLoader, Plain())
            == within(lambda *args, **options: stallscope.DataLoader(*args, **options, **cached), Plain()),
            "the same again": within(stallscope.DataLoader, Random()) == within(stallscope.DataLoader, Random()),
        }
    )
)
sys.stdout.flush()
