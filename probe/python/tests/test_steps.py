"""Steps of loops that no loader drives, and that the job computes the same with and without us."""

import json
from pathlib import Path

import pytest
from collector import PACKAGE, run, run_plain
from conftest import torch_version

JOB = Path(__file__).with_name("steps_job.py")
TURNS = 10

SCENARIOS = [
    "plain", "accumulate", "two", "anew", "around", "critic", "with_loader", "evaluating", "by_script", "in_a_thread", "beside", "forked", "saving",
]  # fmt: skip
COMPILED = ["compiled", "compiled_whole"]


class Seen:
    """The scenarios with and without us."""

    def __init__(self, python):
        scenarios = SCENARIOS + ([] if torch_version(python)[0].startswith("1.") else COMPILED)
        # The package is there as it is where somebody installed it.
        prepare = f"import runpy, sys; sys.path.insert(0, {str(PACKAGE)!r}); sys.argv = {['', *scenarios]!r}"
        command = [python, "-c", f"{prepare}; runpy.run_path({str(JOB)!r})"]
        with_us, plain = run(command), run_plain(command)
        assert with_us.code == plain.code == 0, with_us.err + plain.err
        self.outcome, self.plain = ([json.loads(line) for line in one.out.splitlines()] for one in (with_us, plain))
        self.processes = with_us.collector.processes
        self.pids = {outcome["name"]: outcome["pid"] for outcome in self.outcome}

    def of(self, scenario):
        """The scenario's own process; None where it had nothing to tell."""
        return next((process for process in self.processes if process.pid == self.pids[scenario]), None)

    def sources(self, scenario):
        found = self.of(scenario)
        return [step.source for step in found.of("Step")] if found else []

    def clocks(self, scenario):
        return [clock.time_ns for clock in self.of(scenario).of("Clock") if clock.at == "step"]

    def children(self, scenario):
        return [process for process in self.processes if process.greeting["ppid"] == self.pids[scenario]]


@pytest.fixture(scope="module")
def seen(python):
    return Seen(python)


def test_the_job_computes_the_same(seen):
    def computed(outcome):
        return {one["name"]: one["computed"] for one in outcome}

    assert computed(seen.outcome) == computed(seen.plain)
    assert set(SCENARIOS) <= set(computed(seen.outcome))


@pytest.mark.parametrize("scenario", ["plain", "accumulate", "two", "anew", "around"])
def test_each_turn_ends_with_one_step_of_the_optimiser(seen, scenario):
    assert seen.sources(scenario) == ["optimiser"] * TURNS
    assert seen.of(scenario).kind == "trainer"
    # Each with the clocks that tell of the time since the one before.
    assert seen.clocks(scenario) == [step.time_ns for step in seen.of(scenario).of("Step")]


def test_of_several_optimisers_the_one_that_steps_most_often_makes_the_steps(seen):
    # In the first turn the generator leads until the critic steps for the second time.
    assert len(seen.sources("critic")) == 5 * TURNS


def test_a_loaders_batch_is_reported_as_trained_with_once_and_without_clocks(seen):
    assert seen.sources("with_loader") == ["optimiser"] * TURNS
    assert not seen.clocks("with_loader")


def test_a_loader_that_only_evaluates_stops_no_steps(seen):
    assert seen.sources("evaluating") == ["optimiser"] * TURNS


def test_the_scripts_steps_take_the_optimisers_place(seen):
    assert seen.sources("by_script") == ["optimiser"] * 3 + ["script"] * TURNS


@pytest.mark.parametrize("scenario", ["in_a_thread", "beside"])
def test_steps_that_say_nothing_of_the_main_threads_time_are_not_reported(seen, scenario):
    assert not seen.sources(scenario)


def test_a_forked_child_that_trains_is_a_trainer_with_steps_of_its_own(seen):
    (child,) = seen.children("forked")
    assert child.kind == "trainer"
    assert [step.source for step in child.of("Step")] == seen.sources("forked") == ["optimiser"] * TURNS


def test_what_forked_children_save_is_reported_though_they_end_at_once(seen):
    children = seen.children("saving")
    assert [save.caller for child in children for save in child.of("Checkpoint")] == ["forked"] * 4
    assert {child.kind for child in children} == {"other"}


@pytest.mark.own_python
def test_a_compiled_optimiser_has_steps_where_its_graph_is_broken_anyway(seen):
    assert seen.sources("compiled") == ["optimiser"] * TURNS


@pytest.mark.own_python
def test_a_graph_that_is_whole_without_us_stays_whole(seen):
    assert not seen.sources("compiled_whole")
