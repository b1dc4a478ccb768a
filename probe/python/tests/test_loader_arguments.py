"""The loader names torch's arguments, and takes those of other versions of torch as well."""

import inspect
import json

import pytest
import torch
from collector import PACKAGE, run_plain
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

import stallscope

# What differs from the defaults, for a data set of eight samples.
GIVEN = {
    "batch_size": 4,
    "sampler": SequentialSampler(range(8)),
    "num_workers": 1,
    "collate_fn": list,
    "pin_memory": True,
    "drop_last": True,
    "timeout": 5,
    "worker_init_fn": print,
    "multiprocessing_context": "spawn",
    "generator": torch.Generator(),
    "prefetch_factor": 3,
    "persistent_workers": True,
    "in_order": False,
}

# On any torch: the arguments by name and by position, and one that no torch has.
JOB = """
import inspect, json
import torch, stallscope
from torch.utils.data import DataLoader

made = stallscope.DataLoader(range(8), 4, False, None, None, 1, list, drop_last=True, prefetch_factor=3)
outcome = {"values": [list(batch) for batch in stallscope.DataLoader(range(8), 3, drop_last=True, collate_fn=list)]}
outcome["made"] = [made.batch_size, made.num_workers, made.drop_last, made.prefetch_factor, made.collate_fn is list]
outcome["plain"] = stallscope.DataLoader(range(8)).prefetch_factor == DataLoader(range(8)).prefetch_factor
outcome["errors"] = []
for kwargs in ({"no_such": 1}, {"batch_size": 2, "batch_sampler": [[0]]}):
    for kind in (DataLoader, stallscope.DataLoader):
        try:
            kind(range(8), **kwargs)
        except Exception as error:
            outcome["errors"].append([type(error).__name__, str(error)])
print(json.dumps(outcome))
"""


def test_the_signature_is_torchs_with_ours_behind():
    torchs = inspect.signature(DataLoader).parameters
    ours = inspect.signature(stallscope.DataLoader).parameters
    assert list(ours)[: len(torchs)] == list(torchs)
    for name, parameter in torchs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_given_reaches_torch(name):
    more = {"num_workers": 1} if name in ("timeout", "multiprocessing_context", "prefetch_factor", "persistent_workers") else {}
    made = stallscope.DataLoader(TensorDataset(torch.arange(8)), **{name: GIVEN[name], **more})
    same = DataLoader(made.dataset, **{name: GIVEN[name], **more})
    value, torchs = getattr(made, name), getattr(same, name)
    assert value == torchs or type(value) is type(torchs) and name == "multiprocessing_context"
    assert value != getattr(DataLoader(made.dataset), name)


def test_an_argument_of_a_newer_torch_gets_through(monkeypatch):
    seen, own = {}, DataLoader.__init__

    def __init__(self, *args, newest=None, **kwargs):
        seen.update(kwargs, newest=newest)
        own(self, *args, **kwargs)

    monkeypatch.setattr(DataLoader, "__init__", __init__)
    stallscope.DataLoader(range(8), batch_size=2, newest=7)
    assert seen["newest"] == 7 and set(seen) == {"dataset", "batch_size", "newest"}, "defaults are torch's own"


def test_every_torch_takes_them(python, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(JOB)
    done = run_plain([python, job], PYTHONPATH=str(PACKAGE))
    assert done.code == 0, done.err
    outcome = json.loads(done.out)
    assert outcome["values"] == [[0, 1, 2], [3, 4, 5]] and outcome["plain"]
    assert outcome["made"] == [4, 1, True, 3, True]
    unknown, same, conflict, again = outcome["errors"]
    assert unknown[0] == same[0] == "TypeError" and "no_such" in same[1]
    assert conflict == again
