"""What the shim sees of real DataLoaders, and that they give the same with and without it."""

import json
from collections import defaultdict

import pytest
from collector import run, run_warm
from conftest import JOB, has, torch_version

SAMPLES = 22
STREAM = SAMPLES - 3

FORKED = [
    "map-0", "map-1", "map-2", "map-4", "persistent-2", "getitems-0", "getitems-2", "stream-0", "stream-2",
    "stream-persistent-2", "break-0", "break-2", "failing-0", "failing-2", "dead-worker", "evaluation", "anew",
    "side-by-side", "whole-batches", "pinned-2", "nesting-0", "nesting-1",
]  # fmt: skip
# Epochs, batches and samples an epoch of the scenarios that run through.
COMPLETE = {
    **{name: (2, 6, SAMPLES) for name in ("map-0", "map-1", "map-2", "map-4", "persistent-2", "getitems-2", "pinned-2")},
    **{name: (2, 6, SAMPLES) for name in ("spawn-2", "forkserver-1", "nesting-0", "nesting-1", "stateful")},
    "stream-0": (2, 5, STREAM),
    "anew": (3, 6, SAMPLES),
}


class Seen:
    """A job's run with the shim, cut by scenario."""

    def __init__(self, python, scenarios):
        command = [python, JOB, *scenarios]
        self.run = run(command)
        assert self.run.code == 0, self.run.err
        self.plain = run_warm(command)
        self.trainer = self.run.collector.trainer()
        self.first = {}
        number = 0
        for line in self.run.out.splitlines():
            outcome = json.loads(line)
            self.first[outcome["name"]] = number
            number += outcome["loaders"]
        self.loaders = number

    def of(self, kind, scenario, offset=0):
        return self.trainer.of(kind, self.first[scenario] + offset)

    def producer(self, wait):
        return self.run.collector.by_pid(wait.worker) if wait.worker else self.trainer


@pytest.fixture(scope="module")
def seen(python):
    version = torch_version(python)[0]
    scenarios = list(FORKED)
    if not version.startswith("1."):
        scenarios.append("out-of-order")
    if has(python, "torchdata.stateful_dataloader"):
        scenarios.append("stateful")
    return Seen(python, scenarios)


@pytest.fixture(scope="module")
def spawned(python):
    return Seen(python, ["spawn-2", "forkserver-1"])


def both(seen, spawned):
    return [(run, name) for run in (seen, spawned) for name in run.first if name in COMPLETE]


def test_results_are_the_same_with_and_without(seen, spawned):
    for run in (seen, spawned):
        assert run.run.out == run.plain.out
        assert run.run.code == run.plain.code


def test_nothing_is_unavailable_and_nothing_lost(seen, spawned):
    for run in (seen, spawned):
        for process in run.run.collector.processes:
            assert process.facts_of("unavailable") == []
            assert process.lane.dropped == 0
            # A killed worker says no goodbye.
            if len(process.events) and process.of("Batch") and process is not run.trainer:
                assert len(process.of("Bye")) <= 1


def test_every_process_says_who_it_is(seen, spawned):
    for run in (seen, spawned):
        greeting = run.trainer.greeting
        assert greeting["stallscope"] == 1 and greeting["role"] == "shim" and greeting["rank"] == 0
        assert greeting["torch"] == torch_version_of(run) and greeting["lane_version"] == 2
        workers = [p for p in run.run.collector.processes if p is not run.trainer and p.events]
        assert workers and all(worker.kind == "worker" for worker in workers)
        outcome = {pid for fact in run.trainer.facts_of("workers") for pid in fact["pids"]}
        assert {worker.pid for worker in workers} <= outcome


def torch_version_of(run):
    return torch_version(run.trainer.greeting["argv"][0])[0]


def test_epochs_begin_and_end(seen, spawned):
    for run, name in both(seen, spawned):
        epochs, batches, _ = COMPLETE[name]
        starts = run.of("IterStart", name)
        ends = run.of("IterEnd", name)
        assert [start.epoch for start in starts] == list(range(epochs)), name
        assert [end.batches for end in ends] == [batches] * epochs, name
        assert all(start.time_ns < end.time_ns for start, end in zip(starts, ends)), name


def test_every_batch_has_its_wait(seen, spawned):
    for run, name in both(seen, spawned):
        epochs, batches, samples = COMPLETE[name]
        waits = run.of("Wait", name)
        assert [wait.batch for wait in waits] == list(range(batches)) * epochs, name
        assert sum(wait.samples for wait in waits) == samples * epochs, name
        assert ["first" in wait.flags for wait in waits] == [wait.batch == 0 for wait in waits], name
        assert {"in_process" in wait.flags for wait in waits} == {name.endswith("-0") or name == "anew"}, name
        assert not any({"no_grad", "failed"} & {*wait.flags} for wait in waits), name
        assert {"pinned" in wait.flags for wait in waits} == {name.startswith("pinned")}, name
        assert all(before.time_ns <= wait.enter_ns < wait.time_ns for before, wait in zip(waits, waits[1:])), name


def test_every_batch_was_made_by_the_named_process(seen, spawned):
    for run, name in both(seen, spawned):
        # A persistent worker makes a batch of the same number every epoch.
        made = defaultdict(list)
        loader = run.first[name]
        for wait in run.of("Wait", name):
            producer = run.producer(wait)
            kind_loader = loader if producer is run.trainer else 0
            nth = len(made[wait.worker, wait.batch])
            batches = [batch for batch in producer.of("Batch", kind_loader) if batch.batch == wait.batch]
            batch = batches[nth]
            made[wait.worker, wait.batch].append(batch)
            assert batch.start_ns <= batch.collate_ns <= batch.time_ns <= wait.time_ns, name
            if producer is run.trainer:
                assert wait.enter_ns <= batch.start_ns, name
            samples = [
                sample
                for sample in producer.of("Sample", kind_loader)
                if sample.batch == wait.batch and batch.start_ns <= sample.start_ns <= sample.time_ns <= batch.time_ns
            ]
            assert sum(sample.count for sample in samples) == wait.samples, name
            assert len(samples) <= (1 if name.startswith("getitems") else wait.samples), name
            assert all(one.time_ns <= two.start_ns for one, two in zip(samples, samples[1:])), name
            assert samples[-1].time_ns <= batch.collate_ns, name
            assert 0 < batch.cpu_ns, name


def test_quick_samples_share_a_record(seen):
    records = [record for process in seen.run.collector.processes for record in process.of("Sample")]
    assert len(records) < sum(record.count for record in records)


def test_several_workers_share_the_work(seen):
    assert len({wait.worker for wait in seen.of("Wait", "persistent-2")}) == 2
    assert len({wait.worker for wait in seen.of("Wait", "map-2")}) == 4, "new workers every epoch"
    numbers = [seen.producer(wait).of("Batch")[0].worker for wait in seen.of("Wait", "map-4")[:4]]
    assert numbers == [0, 1, 2, 3]


def test_clocks_stand_beside_waits_and_batches(seen):
    waits = seen.of("Wait", "map-2")
    clocks = {(clock.at, clock.time_ns): clock for clock in seen.trainer.of("Clock", seen.first["map-2"])}
    for wait in waits:
        enter, leave = clocks["wait_enter", wait.enter_ns], clocks["wait_exit", wait.time_ns]
        assert 0 < enter.cpu_ns <= leave.cpu_ns and enter.run_delay_ns <= leave.run_delay_ns
        assert 0 < enter.process_cpu_ns <= leave.process_cpu_ns
    worker = seen.producer(waits[0])
    clocks = {(clock.at, clock.time_ns): clock for clock in worker.of("Clock")}
    for batch in worker.of("Batch"):
        start, ready = clocks["batch_start", batch.start_ns], clocks["batch_ready", batch.time_ns]
        assert ready.cpu_ns - start.cpu_ns == batch.cpu_ns and start.run_delay_ns <= ready.run_delay_ns


def test_streams_count_what_came(seen):
    for name in ("stream-2", "stream-persistent-2"):
        waits = seen.of("Wait", name)
        assert sum(wait.samples for wait in waits) == STREAM * 2, name
        for wait in waits:
            assert any(batch.batch == wait.batch for batch in seen.producer(wait).of("Batch")), name


def test_a_loop_that_breaks_off_ends_its_epoch(seen):
    for name in ("break-0", "break-2"):
        assert len(seen.of("IterStart", name)) == len(seen.of("IterEnd", name)) == 2, name
        assert [end.batches for end in seen.of("IterEnd", name)] == [4, 4], name


def test_an_iterator_that_found_its_end_says_when_it_was_asked(seen, spawned):
    for run, name in both(seen, spawned):
        for end in run.of("IterEnd", name):
            assert 0 < end.enter_ns <= end.time_ns, name
    for name in ("break-0", "break-2"):
        assert [end.enter_ns for end in seen.of("IterEnd", name)] == [0, 0], name


def test_a_loop_that_breaks_off_ends_before_its_workers_do(seen):
    ends = seen.of("IterEnd", "break-2")
    waits = seen.of("Wait", "break-2")
    for epoch, end in enumerate(ends):
        workers = {wait.worker for wait in waits[epoch * 4 : epoch * 4 + 4]}
        byes = [bye for pid in workers for bye in seen.run.collector.by_pid(pid).of("Bye")]
        assert len(workers) == 2 and byes and all(end.time_ns < bye.time_ns for bye in byes)


def test_an_error_of_the_data_set_is_a_failed_wait(seen):
    for name in ("failing-0", "failing-2"):
        assert ["failed" in wait.flags for wait in seen.of("Wait", name)].count(True) == 1, name
        assert len(seen.of("IterEnd", name)) == 1, name
    assert "failed" in seen.of("Wait", "dead-worker")[-1].flags


def test_evaluation_is_marked_and_loaders_are_distinguished(seen):
    train, held_out = seen.of("Wait", "evaluation"), seen.of("Wait", "evaluation", 1)
    assert len(train) == 12 and not any("no_grad" in wait.flags for wait in train)
    assert len(held_out) == 4 and all("no_grad" in wait.flags for wait in held_out)
    assert all("no_grad" in start.flags for start in seen.of("IterStart", "evaluation", 1))
    two, four = seen.of("Wait", "side-by-side"), seen.of("Wait", "side-by-side", 1)
    assert {wait.samples for wait in two} == {2} and {wait.samples for wait in four} == {4, 2}


def test_facts_describe_each_loader_once(seen):
    facts = {fact["loader"]: fact for fact in seen.trainer.facts_of("loader")}
    assert sorted(facts) == list(range(seen.loaders))
    map_4 = facts[seen.first["map-4"]]
    expected = {
        "workers": 4, "batch_size": 4, "prefetch_factor": 3, "pin_memory": False, "persistent_workers": False,
        "start_method": "fork", "dataset": "Squares", "dataset_len": SAMPLES,
    }  # fmt: skip
    assert {key: map_4[key] for key in expected} == expected
    assert facts[seen.first["map-0"]]["start_method"] == ""
    assert [facts[seen.first[name]]["pin_memory"] for name in ("map-1", "pinned-2")] == [False, True]
    assert facts[seen.first["stream-0"]]["dataset_len"] is None
    assert facts[seen.first["whole-batches"]]["batch_size"] is None


def test_whole_batches_are_counted_where_their_tensors_agree(seen):
    assert {wait.samples for wait in seen.of("Wait", "whole-batches")} == {6}


@pytest.mark.own_python
def test_batches_out_of_order_name_their_workers(seen):
    if "out-of-order" not in seen.first:
        pytest.skip("SKIPPED: this torch always keeps the order")
    waits = seen.of("Wait", "out-of-order")
    assert sorted(wait.batch for wait in waits) == sorted(list(range(6)) * 2)
    for wait in waits:
        assert wait.batch in [batch.batch for batch in seen.producer(wait).of("Batch")]


TRAINER = """
from torch.utils.data import DataLoader

class Trainer:
    loader = DataLoader(list(range(8)), batch_size=2)

    def evaluation_loop(self, loader):
        return sum(len(batch) for batch in loader)

    def train(self):
        return [sum(len(batch) for batch in self.loader), self.evaluation_loop(DataLoader(list(range(4)), batch_size=2))]
"""


def test_hugging_faces_evaluation_is_evaluation(python, tmp_path):
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("")
    (tmp_path / "transformers" / "trainer.py").write_text(TRAINER)
    (tmp_path / "train.py").write_text("from transformers.trainer import Trainer\nprint(Trainer().train())\n")
    done = run([python, tmp_path / "train.py"])
    assert (done.code, done.out) == (0, "[8, 4]\n"), done.err
    waits = done.collector.trainer().of("Wait")
    assert ["no_grad" in wait.flags for wait in waits] == [False] * 4 + [True] * 2
