"""Transformers' Trainer takes a cache by one line, and trains as it would have trained without."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from collector import PACKAGE, environment
from conftest import needs

JOB = Path(__file__).with_name("transformers_job.py")
SAMPLES, EPOCHS = 23, 2
# A Trainer with a cache by what it has beside, and the untouched one that it is compared with.
SAME = {
    "as the Trainer is": ({}, {}),
    "whole batches alone": ({"drop_last": True, "persistent": True}, {"drop_last": True, "persistent": True}),
    "fetched ahead": ({"fetchers": 2}, {}),
    "in memory": ({"in_memory": True}, {}),
}


def ports(count):
    """Ports that are free."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return found


def cases():
    """By name."""
    found = {json.dumps(plain): {"cached": False, **plain} for _, plain in SAME.values()}
    found.update({name: {"cached": True, **more} for name, (more, _) in SAME.items()})
    first, second = ports(2)
    found["untouched ranks"] = {"cached": False, "ranks": 2, "port": first}
    found["ranks"] = {"cached": True, "ranks": 2, "port": second}
    found["cut"] = {"cached": True, "out": "cut", "steps": 3}
    found["resumed"] = {"cached": True, "out": "cut", "resume": True}
    return found


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder, all_cases = tmp_path_factory.mktemp("trained"), cases()
    path = os.pathsep.join([str(PACKAGE), os.path.dirname(__file__)])
    env = environment(None, PYTHONPATH=path, HF_HUB_OFFLINE="1")
    given = map(json.dumps, all_cases.values())
    done = subprocess.run([needs("transformers"), JOB, folder, *given], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[{")]
    assert len(lines) == len(all_cases), done.stderr
    return dict(zip(all_cases, lines))


@pytest.mark.parametrize("name", SAME)
def test_the_same_samples_in_the_same_order_make_the_same_model(outcome, name):
    (plain,), (cached,) = outcome[json.dumps(SAME[name][1])], outcome[name]
    assert sum(map(len, plain["trained"])) == EPOCHS * (21 if "whole" in name else SAMPLES)
    assert cached["trained"] == plain["trained"], "sampler, seed, batches and collator are the Trainer's"
    assert (cached["weights"], cached["next"]) == (plain["weights"], plain["next"])


def test_the_second_epoch_comes_out_of_the_cache(outcome):
    (cached,), (ahead,) = outcome["as the Trainer is"], outcome["fetched ahead"]
    figures = cached["figures"]
    assert (figures["misses"], figures["hits"]) == (SAMPLES, SAMPLES) and cached["warned"] == []
    assert figures["capacity_bytes"] == 1 << 20
    figures = ahead["figures"]
    assert figures["misses"] + figures["prefetched"] == SAMPLES and figures["hits"] - figures["prefetched"] == SAMPLES


def test_a_data_set_that_cannot_be_kept_is_read_as_ever_and_a_sentence_says_why(outcome):
    (cached,) = outcome["in memory"]
    (warned,) = cached["warned"]
    assert "the loader of Memory goes on without its cache" in warned


def test_each_rank_gets_what_it_would_have_got(outcome):
    plain, cached = outcome["untouched ranks"], outcome["ranks"]
    assert len(plain) == 2 and plain[0]["trained"] != plain[1]["trained"]
    for without, one in zip(plain, cached):
        assert one["trained"] == without["trained"] and one["weights"] == without["weights"]
    uses = [sum(map(len, one["trained"])) for one in cached]
    counts = [(one["figures"]["hits"], one["figures"]["misses"]) for one in cached]
    assert [hits + misses for hits, misses in counts] == uses
    assert sum(misses for _, misses in counts) == SAMPLES, "the ranks share what they read"


def test_a_resumed_job_goes_on_with_the_samples_that_follow(outcome):
    (whole,), (cut,), (resumed,) = outcome["{}"], outcome["cut"], outcome["resumed"]
    assert cut["trained"][:3] == whole["trained"][:3] and len(cut["trained"]) == 3
    assert resumed["trained"] == whole["trained"][3:]


def test_wrong_arguments_are_errors_and_other_loaders_stay(tmp_path):
    ask = """
import torch, warnings
import stallscope.transformers

class Trainer:
    def __init__(self, loader=None):
        self.loader = loader

    def get_train_dataloader(self):
        return self.loader

for given in ((Trainer(), "much", 0), (Trainer(), "1GiB", 99), (None, "1GiB", 0)):
    try:
        stallscope.transformers.use_loader(*given)
    except (ValueError, TypeError) as error:
        print(type(error).__name__, error)

class Own(torch.utils.data.DataLoader):
    pass

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([1])

for loader in (Own([1, 2]), torch.utils.data.DataLoader(Stream())):
    trainer = stallscope.transformers.use_loader(Trainer(loader), "1MiB")
    with warnings.catch_warnings(record=True) as outcome:
        warnings.simplefilter("always")
        assert trainer.get_train_dataloader() is loader
    print(*[one.message for one in outcome])
loader = torch.utils.data.DataLoader(list(range(7)), 3, drop_last=True)
ours = stallscope.transformers.use_loader(Trainer(loader), "1MiB").get_train_dataloader()
print(type(ours) is stallscope.DataLoader, [batch.tolist() for batch in ours], [batch.tolist() for batch in loader])
"""
    env = environment(None, PYTHONPATH=str(PACKAGE), STALLSCOPE_RUNTIME_DIR=str(tmp_path))
    done = subprocess.run([needs("transformers"), "-c", ask], env=env, capture_output=True, text=True)
    messages = done.stdout.splitlines()
    assert len(messages) == 6, done.stderr
    assert 'such as "8GiB"' in messages[0] and "whole number from 0 to 32" in messages[1] and "NoneType is none" in messages[2]
    assert "it is a Own, and no DataLoader of torch's own class" in messages[3] and "its samples have no index" in messages[4]
    assert messages[5] == "True [[0, 1, 2], [3, 4, 5]] [[0, 1, 2], [3, 4, 5]]"
