"""Iterates loaders whose decoded samples may be kept; prints what each gave, a JSON line a case.

usage: decoded_job.py FOLDER CASE...; each case has a folder of its own under FOLDER. What decoding takes is not measured
but declared, so that no machine's speed decides.
"""

import copy
import json
import random
import sys
import warnings
from pathlib import Path

import torch
from cached_job import epochs, loader, messages
from cached_sets import FILES, fill
from decoded_sets import SETS

from stallscope.data.cache import encoding, split, stored_form

DEAR = {"read_s": 0.001, "decode_s": 0.1, "pack_s": 0.0001, "take_s": 0.0001}
CHEAP = {"read_s": 0.001, "decode_s": 0.0001, "pack_s": 0.0001, "take_s": 0.0001}
_of = split.of


def declare_costs(figures):
    def of(*args):
        found = _of(*args)
        found.decoded.get("figures", {}).update(figures)
        return found

    split.of = of


def repeated():
    """Each sample three times."""
    draws = [index for index in range(FILES) for _ in range(3)]
    random.Random(1).shuffle(draws)
    return {"sampler": draws}


def outcome(one, got, **more):
    return {"got": got, "figures": one.cache_figures(), **more}


def same(folder, workers, method=None):
    # Workers that are kept draw a seed once.
    more = {"persistent_workers": True} if method else {}
    dataset = SETS["in-parts"](folder)
    plain = epochs(loader(dataset, None, batch_size=None, num_workers=min(workers, 1), **repeated(), **more))
    more["multiprocessing_context"] = method
    one = loader(dataset, batch_size=None, num_workers=workers, **repeated(), **more)
    got = epochs(one)
    by_label = {}
    for sample in got[0]:
        by_label.setdefault(sample[0], set()).add(json.dumps(sample))
    different = {len(samples) for samples in by_label.values()}
    return {"same": got == plain, "different": sorted(different), "figures": one.cache_figures()}


def other(folder, name, workers, dear=True):
    """A data set that is not, or not quite, one whose decoded samples can be kept."""
    declare_costs(DEAR if dear else CHEAP)
    make = SETS[name]
    plain = []
    if name not in ("without-samples", "sometimes"):
        plain = epochs(loader(make(folder), None, batch_size=None, num_workers=workers, shuffle=True))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        one = loader(make(folder), batch_size=None, num_workers=workers, shuffle=True)
        got = samples(one) + samples(one) if name == "sometimes" else epochs(one)
    return {"same": got == plain, "got": got, "messages": messages(warned), "figures": one.cache_figures()}


def samples(one):
    """Of an epoch, what a loop gets that goes on after an error."""
    iterator, got = iter(one), []
    while True:
        try:
            got.append(next(iterator)[0])
        except StopIteration:
            return got
        except Exception as error:
            got.append([type(error).__name__, str(error), repr(error.__context__)])


def agreed(folder):
    """Another loader would choose another form."""
    first = loader(SETS["in-parts"](folder), batch_size=None)
    got = epochs(first, 1)
    declare_costs(CHEAP)
    second = loader(SETS["in-parts"](folder), batch_size=None)
    return {"same": epochs(second, 1) == got, "first": first.cache_figures(), "second": second.cache_figures()}


def apart(folder):
    """Both forms of one data set in one pool: nobody agrees with anybody."""
    stored_form.agreed = lambda choice, key: choice
    plain = epochs(loader(SETS["in-parts"](folder), None, batch_size=None), 2)
    loaders, got = [], []
    for figures in (DEAR, CHEAP):
        declare_costs(figures)
        loaders.append(loader(SETS["in-parts"](folder), batch_size=None))
        got.append(epochs(loaders[-1], 2))
    return {"same": got == [plain, plain], "figures": [one.cache_figures() for one in loaders]}


def spoiled(folder):
    """What lies in the pool of three samples is none."""
    dataset = SETS["in-parts"](folder)
    plain = epochs(loader(dataset, None, batch_size=None), 3)
    one = loader(dataset, batch_size=None)
    space = one._stored().space
    kept = encoding.pack(dataset.decode(bytearray(dataset.fetch(3))))
    put = []
    for number, data in ((3, kept[:-1]), (4, kept[:100] + b"?" + kept[101:]), (5, b"none")):
        space.claim(number, 0, 0)
        put.append(space.fill(number, 0, data))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        got = epochs(one, 3)
    return {"same": got == plain, "put": put, "messages": messages(warned), "figures": one.cache_figures()}


def copied(folder):
    one = loader(SETS["in-parts"](folder), batch_size=None)
    epochs(one)
    again = copy.deepcopy(one)
    return {"labels": [sample[0] for sample in epochs(again, 1)[0]], "figures": again.cache_figures()}


def share(folder, dear):
    """What a cache of 12 blocks of decoded samples is of the data set, for a plan that needs to know."""
    declare_costs(DEAR if dear else {**CHEAP, "encoded_bytes": 1000})
    one = loader(SETS["in-parts"](folder), "8KiB", batch_size=None)
    return {"share": one._share_of_cache(), "kept": one.cache_figures()["kept"], "bytes": one._store.budget_bytes}


CASES = {
    "same": same, "other": other, "agreed": agreed, "apart": apart, "spoiled": spoiled, "share": share,
    "copied": copied,
}  # fmt: skip


def main():
    torch.set_num_threads(1)
    root, agree = Path(sys.argv[1]), stored_form.agreed
    for number, case in enumerate(sys.argv[2:]):
        name, *arguments = json.loads(case)
        folder = root / str(number)
        fill(folder)
        declare_costs(DEAR)
        stored_form.agreed = agree
        print(json.dumps(CASES[name](str(folder), *arguments)), flush=True)


if __name__ == "__main__":
    main()
