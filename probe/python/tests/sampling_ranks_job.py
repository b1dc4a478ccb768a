"""Ranks that draw from one sequence; each prints what it drew, a JSON line.

usage: sampling_ranks_job.py RANKS '["importance", {"batch_size": 8}]'
"""

import json
import multiprocessing
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from sampling_job import Noisy, Parts, loss_of
from substitution_job import batches
from substitution_job import loader as substituting
from torch.utils.data.distributed import DistributedSampler

import stallscope

EPOCHS = 3


def draw(one, stop=None):
    epochs, state = [], None
    for _ in range(EPOCHS):
        epoch = []
        for number, (batch, ids, weights) in enumerate(one.weighted()):
            assert batch[:, 0].long().tolist() == ids.tolist()
            epoch.append([ids.tolist(), weights.tolist()])
            # What is lost on one rank is learned on all.
            one.update(ids, loss_of(ids))
            if (len(epochs), number) == stop:
                state = one.state_dict()
        epochs.append([len(one), epoch])
    return epochs, state


def rank(number, ranks, meeting, sampling, options, way):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if way != "given":
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=ranks)
    if way == "others":
        one = substituting(sampling, 0.3, seed=7 + number, cache="300KB", **options)
        _put(meeting, number, {"epochs": [batches(one) for _ in range(EPOCHS)]})
        return
    # Ranks are seeded differently.
    torch.manual_seed(7 + number)
    more = dict(options)
    if way == "given":
        more["sampling_options"] = {"num_replicas": ranks, "rank": number}
    dataset = Parts() if sampling == "reuse" else Noisy(more.pop("samples", 230))
    if sampling == "reuse":
        more["cache"] = "400KB"
    if way == "sampler":
        more["sampler"] = DistributedSampler(dataset, ranks, number)
    one = stallscope.DataLoader(dataset, sampling=sampling, **more)
    epochs, state = draw(one, stop=(1, 4))
    again = None
    if state is not None and way == "joined" and sampling != "reuse":
        resumed = stallscope.DataLoader(dataset, sampling=sampling, **more)
        resumed.load_state_dict(state)
        rest = []
        for _, ids, weights in resumed.weighted():
            rest.append([ids.tolist(), weights.tolist()])
            resumed.update(ids, loss_of(ids))
        again = rest == epochs[1][1][5:]
    _put(meeting, number, {"rank": number, "epochs": epochs, "again": again, "seed": one._order.settled["seed"]})


def _put(meeting, number, outcome):
    with open(os.path.join(os.path.dirname(meeting), f"rank-{number}"), "w") as file:
        json.dump(outcome, file)


def main():
    ranks, cases = int(sys.argv[1]), [json.loads(case) for case in sys.argv[2:]]
    for sampling, options, way in cases:
        with tempfile.TemporaryDirectory() as folder:
            fork = multiprocessing.get_context("fork")
            meeting = os.path.join(folder, "meeting")
            arguments = (ranks, meeting, sampling, options, way)
            processes = [fork.Process(target=rank, args=(number, *arguments)) for number in range(ranks)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            outcome = []
            for number in range(ranks):
                with open(os.path.join(folder, f"rank-{number}")) as file:
                    outcome.append(json.load(file))
            print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
