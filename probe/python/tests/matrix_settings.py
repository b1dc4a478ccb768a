"""Settings of loaders and of loops over them, each drawn from its number: the same number is the same setting."""

import random

NOT_SEQUENTIAL = [
    "replacement", "weighted", "subset-random", "distributed", "drawing", "list", "batches", "batch-sampler",
    "drawing-batches",
]  # fmt: skip
STREAMS = ("stream", "unsized")
GENERATORS = ("torch", "python", "numpy")


def setting(number):
    """Plain data."""
    chance = random.Random(number)

    def one_of(*weighted):
        return chance.choices([value for value, _ in weighted], [weight for _, weight in weighted])[0]

    kinds = ("map", 4), ("items", 2), ("whole", 1), ("parts", 3), ("augmented", 3), ("files", 3), ("stream", 2), ("unsized", 1)
    kind = one_of(*kinds)
    length = chance.randint(2, 40)
    workers = one_of((0, 3), (1, 2), (2, 3), (3, 1))
    found = {
        "number": number, "kind": kind, "length": length, "workers": workers,
        "form": chance.choice(["tuple", "dict", "named", "mixed"]),
        "drawing": [one for one in GENERATORS if chance.random() < 0.4],
        "broken": [chance.randrange(length), chance.choice(["value", "key", "own"])] if chance.random() < 0.15 else None,
        "salt": chance.randrange(1 << 20),
        "seed": chance.randrange(1 << 32),
        "gives": chance.choice(["list", "tuple", "generator", "map"]),
        "subset": kind not in (*STREAMS, "whole") and chance.random() < 0.15,
        "batch_size": one_of((None, 1), (1, 1), (3, 3), (4, 3), (7, 1)),
        "drop_last": chance.random() < 0.3,
        "order": one_of(("sequential", 2), ("shuffle", 4), *((name, 0.6) for name in NOT_SEQUENTIAL)),
        "generator": chance.randrange(1 << 16) if chance.random() < 0.4 else None,
        "collate": one_of((None, 4), ("listing", 1), ("noisy", 1)),
        "prefetch": chance.choice([None, 1, 2, 4]),
        "persistent": chance.random() < 0.4,
        "start": one_of(("fork", 30), ("spawn", 1)),
        "init": one_of((None, 3), ("seeds-numpy", 1), ("tags", 1)),
        "epochs": [_epoch(chance) for _ in range(chance.randint(1, 3))],
        "trains": [one for one in GENERATORS if chance.random() < 0.5],
        "cache": chance.choice(["1MiB", "64KiB", 3000]),
        "fetchers": one_of((0, 5), (2, 1)),
    }  # fmt: skip
    return _made_valid(found)


def _epoch(chance):
    looks = chance.random() < 0.2
    return {
        "stop": chance.randint(0, 6) if chance.random() < 0.25 else None,
        # After this batch a second iterator is taken, asked for so many, and dropped or kept until the epoch's end.
        "look": [chance.randint(0, 4), chance.randint(0, 3), chance.random() < 0.5] if looks else None,
        # After these batches these changes are made where a run is turned: of the prefetch alone, or of workers, too.
        "turns": [[chance.randint(0, 8), chance.choice(["prefetch", "workers"]), chance.randint(1, 4)] for _ in range(3)],
    }  # fmt: skip


def _made_valid(found):
    if found["kind"] in STREAMS:
        found["order"] = "sequential"
    if found["subset"]:
        found["broken"] = None
    if found["order"] in ("batches", "batch-sampler", "drawing-batches") and found["batch_size"] is None:
        found["batch_size"] = 3
    if found["batch_size"] is None:
        found.update(drop_last=False, collate=None)
    elif found["kind"] == "whole":
        found["collate"] = "as-it-is"
    elif found["kind"] == "items" and found["gives"] in ("generator", "map"):
        found["collate"] = found["collate"] or "listing"
    if found["workers"] == 0:
        found.update(persistent=False, prefetch=None, start="fork")
    if found["kind"] in ("parts", "augmented"):
        # What a worker's init function changes of a data set, its fetch and decode do not use.
        found["init"] = found["init"] if found["init"] != "tags" else None
    return found
