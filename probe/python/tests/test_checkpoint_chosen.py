"""Which checkpoint is restored, which ones stay, and what a job that changed takes of one."""

import os
import re
import signal

import pytest
import torch
from collector import PACKAGE  # noqa: F401  (finds the staged package)
from test_checkpoint_runs import named, runs
from test_checkpointer import assert_goes_on, checkpoints, train, whole

from stallscope import Checkpointer, CheckpointError

pytestmark = pytest.mark.own_python

SAVES = {"10": ["save"], "20": ["save"], "30": ["save"], "31": ["exit"]}


@pytest.fixture
def saved(tmp_path, python):
    assert train(python, tmp_path, options={"every": 1000}, events=SAVES).code == 0
    assert checkpoints(tmp_path) == named(9, 19, 29)
    return tmp_path


@pytest.mark.parametrize("which", [19, "step-000000019"])
def test_a_job_goes_on_from_a_chosen_step(python, saved, which):
    outcome = train(python, saved, restore={"step": which}, options={"every": 1000}, events={"24": ["save"]})
    assert outcome.start["step"] == 19
    assert_goes_on(whole(python), outcome)
    assert checkpoints(saved) == named(19, 22, 29), "of the same run, so that the oldest goes"


def test_a_chosen_one_that_is_not_there_or_not_whole_is_refused_and_stays(python, saved):
    outcome = train(python, saved, restore={"step": 17})
    assert outcome.code == 1 and re.search(r'has no checkpoint "17"; there is step-000000029, step-0', outcome.err), outcome.err
    shard = saved / "step-000000019" / "shard-0.safetensors"
    os.truncate(shard, shard.stat().st_size // 2)
    outcome = train(python, saved, restore={"step": 19})
    assert outcome.code == 1 and "is damaged: it is" in outcome.err and "see what can be restored with `stallscope ckpt ls" in outcome.err, outcome.err
    assert checkpoints(saved) == named(9, 19, 29)


def test_one_stays_for_every_so_many_steps_also_over_a_kill(python, tmp_path):
    case = {"options": {"every": 1000, "keep": 1, "keep_every": 10}}
    case["events"] = {str(step): ["save"] for step in (3, 9, 13, 17, 24, 28)}
    assert train(python, tmp_path, 18, **case).code == -signal.SIGKILL
    outcome = train(python, tmp_path, **case)
    assert outcome.start["step"] == 16
    assert_goes_on(whole(python), outcome)
    # The first at or after 10 and after 20, and the newest.
    assert checkpoints(tmp_path) == named(12, 22, 26)


def test_the_best_stays_and_comes_back(tmp_path):
    model = torch.nn.Linear(2, 1)
    losses = [0.9, 0.3, 0.5, float("nan"), 0.4]
    with Checkpointer(tmp_path, model=model, every=1000, keep=1, monitor="loss", mode="min") as checkpointer:
        for loss in losses:
            torch.nn.init.constant_(model.weight, loss)
            checkpointer.step()
            checkpointer.save(metrics={"loss": torch.tensor(loss), "accuracy": 1})
        with pytest.raises(ValueError, match=r"metrics has accuracy and no 'loss', which monitor= names"):
            checkpointer.save(metrics={"accuracy": 1})
    assert checkpoints(tmp_path) == named(2, 5)
    with Checkpointer(tmp_path, model=model, every=1000, keep=1, monitor="loss", mode="min") as checkpointer:
        assert checkpointer.restore().step == 5
        start = checkpointer.restore("best")
        assert start.step == 2 and model.weight.flatten().tolist() == pytest.approx([0.3, 0.3])
        # One that is on its way is waited for.
        checkpointer.save(metrics={"loss": 0.1})
        assert checkpointer.restore("best").name == "step-000000002.2"
    assert checkpoints(tmp_path) == ["step-000000002.2"]


@pytest.mark.parametrize("mode, values, best", [("max", [1, float("inf"), 5, float("nan")], 1), ("min", [1, float("-inf"), float("-inf"), 0], 1)])
def test_an_infinite_metric_may_be_the_best(tmp_path, mode, values, best):
    model = torch.nn.Linear(2, 1)
    with Checkpointer(tmp_path, model=model, every=1000, keep=1, monitor="score", mode=mode) as checkpointer:
        for value in values:
            checkpointer.save(wait=True, metrics={"score": value})
            checkpointer.step()
        assert checkpointer.restore("best").step == best
    assert checkpoints(tmp_path) == named(best, len(values) - 1)


def test_no_best_without_a_metric(tmp_path):
    with Checkpointer(tmp_path, model=torch.nn.Linear(2, 1), every=1000, monitor="loss") as checkpointer:
        checkpointer.save(wait=True)
        with pytest.raises(CheckpointError, match="has no best checkpoint: its newest run saved none with the metric"):
            checkpointer.restore("best")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mode": "least", "monitor": "loss"}, "mode='least'"),
        ({"monitor": "loss", "keep_best": 0}, "keep_best=0"),
        ({"keep_every": 0}, "keep_every=0"),
        ({"keep_every": "soon"}, "keep_every='soon' is no time"),
        ({"signals": ["SIGHELP"]}, "there is no signal 'SIGHELP'"),
        ({"signals": ["SIGKILL"]}, "SIGKILL cannot be caught"),
        ({"loader": []}, "loader= has no loader in it"),
    ],
)
def test_what_makes_no_sense_is_refused_as_it_is_made(tmp_path, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Checkpointer(tmp_path, model=torch.nn.Linear(2, 1), **options)


def network(classes):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, classes))
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}


def trained(parts, checkpointer):
    parts["model"](torch.ones(2, 4)).sum().backward()
    parts["optimizer"].step()
    checkpointer.step()
    checkpointer.save(wait=True)


def test_a_changed_model_takes_what_fits_and_leaves_the_old_ones_alone(tmp_path):
    old = network(2)
    with Checkpointer(tmp_path, **old, every=1000, keep=1) as checkpointer:
        trained(old, checkpointer)
    new = network(3)
    head = new["model"][1].weight.clone()
    with pytest.raises(CheckpointError, match="or take what fits of them with strict=False"):
        Checkpointer(tmp_path, **new)
    for nth in range(2):
        with Checkpointer(tmp_path, **new, scaler=network(2)["optimizer"], every=1000, keep=1, strict=False) as checkpointer:
            if nth == 1:
                start = checkpointer.restore()
                assert start.step == 2 and start.misfits == []
            else:
                with pytest.warns(RuntimeWarning, match=r"step-000000001 fits in part: model: 1\.weight, 1\.bias are as before"):
                    start = checkpointer.restore()
                assert start.step == 1 and len(start.misfits) == 3, start.misfits
                assert torch.equal(new["model"][0].weight, old["model"][0].weight)
                assert torch.equal(new["model"][1].weight, head) and not new["optimizer"].state
            trained(new, checkpointer)
        assert checkpoints(tmp_path) == named(1, 2 + nth)
    assert len(set(runs(tmp_path).values())) == 2


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.filterwarnings("ignore:stallscope. step-000000008 fits in part")
def test_a_data_set_that_grew_goes_on_with_the_epoch_that_was_under_way(tmp_path, several):
    def epochs(samples, steps, **options):
        loader = torch.utils.data.DataLoader(torch.arange(samples), batch_size=4, shuffle=True)
        other = torch.utils.data.DataLoader(torch.arange(99), batch_size=4)
        with Checkpointer(tmp_path, loader={"a": loader, "b": other} if several else loader, every=1000, signals=(), **options) as checkpointer:
            start, got = checkpointer.restore(), []
            for epoch in range(start.epoch if start else 0, 4):
                for _ in loader:
                    got.append(epoch)
                    checkpointer.step()
                    if len(got) == steps:
                        checkpointer.save(wait=True)
                        return got
            return got

    assert epochs(12, 8) == [0, 0, 0, 1, 1, 1, 2, 2]
    with pytest.raises(CheckpointError, match="of 12 samples, here are 16"):
        epochs(16, 99)
    assert epochs(16, 5, strict=False) == [2, 2, 2, 2, 3]
    assert epochs(16, 99) == [3, 3, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_several_loaders_go_on_each_where_it_was(python, tmp_path, workers):
    # Augmentation by workers is theirs, unless it belongs to the sample.
    case = {"second": True, "workers": workers, "ours": bool(workers)}
    reference = whole(python, **case)
    saves = {str(step): ["save"] for step in (4, 15, 26)}
    assert train(python, tmp_path, 8, events=saves, options={"every": 1000}, **case).code == -signal.SIGKILL
    assert train(python, tmp_path, 14, events=saves, options={"every": 1000}, **case).code == -signal.SIGKILL
    outcome = train(python, tmp_path, **case)
    assert outcome.start["step"] > 10
    assert_goes_on(reference, outcome)


def test_other_loaders_than_were_saved_are_refused(python, tmp_path):
    assert train(python, tmp_path, second=True, events={"10": ["save", "exit"]}).code == 0
    outcome = train(python, tmp_path)
    assert outcome.code == 1
    assert "the checkpoint has the position of the loaders 0, 1 and here one loader; without loader= the order" in outcome.err


def test_a_signal_that_is_named_saves_and_ends_the_job(python, tmp_path):
    options = {"every": 1000, "signals": ["SIGTERM", "SIGUSR1"]}
    outcome = train(python, tmp_path, options=options, events={"14": ["usr1"]})
    assert outcome.code == -signal.SIGUSR1
    assert "stallscope: SIGUSR1 came: step-000000014 is the last checkpoint" in outcome.err
    outcome = train(python, tmp_path, options=options)
    assert outcome.start["step"] == 14
    assert_goes_on(whole(python), outcome)


def test_no_signal_is_watched_that_is_not_named(python, tmp_path):
    for number, event, options in ((signal.SIGUSR1, "usr1", {}), (signal.SIGTERM, "term", {"signals": []})):
        outcome = train(python, tmp_path, options={"every": 1000, **options}, events={"5": [event]})
        assert outcome.code == -number and checkpoints(tmp_path) == []
