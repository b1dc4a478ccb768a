"""A restore that is refused leaves everything as it was, and says why."""

import os
import tracemalloc

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import Checkpointer, CheckpointError  # noqa: E402
from stallscope.checkpoint import checkpointer as module_of  # noqa: E402
from stallscope.checkpoint import restoring  # noqa: E402
from stallscope.checkpoint.tree import Reader, Writer, from_bytes, to_bytes  # noqa: E402


def test_a_changed_model_says_which_layer_before_anything_is_set(tmp_path):
    with Checkpointer(tmp_path, model=torch.nn.Linear(4, 2)) as checkpointer:
        checkpointer.save(wait=True)
    # Whose word it is that another job saved here before anything is restored.
    (tmp_path / "latest").unlink()
    other = torch.nn.Linear(4, 3)
    before = other.weight.clone()
    with Checkpointer(tmp_path, model=other) as checkpointer:
        with pytest.raises(CheckpointError, match=r"model: weight is \[2, 4\] in the checkpoint and \[3, 4\] here"):
            checkpointer.restore()
    with Checkpointer(tmp_path, model=torch.nn.Sequential(other)) as checkpointer:
        with pytest.raises(CheckpointError, match="it lacks 0.weight, 0.bias and has weight, bias besides"):
            checkpointer.restore()
    with Checkpointer(tmp_path, model=torch.nn.Linear(4, 2), ema=torch.nn.Linear(1, 1)) as checkpointer:
        with pytest.raises(CheckpointError, match="has no 'ema' but model"):
            checkpointer.restore()
    assert torch.equal(other.weight, before)


class Stubborn:
    """Has a state that it does not take back."""

    def __init__(self, takes):
        self.takes = takes

    def state_dict(self):
        return {"places": 3}

    def load_state_dict(self, state):
        if not self.takes:
            raise ValueError("not this one")


def test_what_refuses_leaves_everything_as_it_was(tmp_path):
    def job(seed, takes):
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 / seed)
        model(torch.rand(3, 4)).sum().backward()
        optimizer.step()
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3 + seed),
            "last": Stubborn(takes),
        }

    def seen(job):
        return repr([one.state_dict() for one in job.values()]) + repr(torch.get_rng_state().sum())

    with Checkpointer(tmp_path, **job(1, True), state={"best": 1}) as checkpointer:
        checkpointer.save(wait=True)
    other, state = job(2, False), {"best": 2}
    with Checkpointer(tmp_path, **other, state=state) as checkpointer:
        before = seen(other)
        with pytest.raises(CheckpointError, match="last: Stubborn does not take the state"):
            checkpointer.restore()
        assert seen(other) == before and state == {"best": 2}
    other["last"].takes = True
    with Checkpointer(tmp_path, **other, state=state) as checkpointer:
        assert checkpointer.restore() is not None
    assert seen(other) != before and state == {"best": 1}


def test_a_tensor_whose_memory_was_given_back_is_refused_and_ends_no_job(tmp_path):
    if not hasattr(torch.Tensor, "untyped_storage"):
        pytest.skip("SKIPPED: this torch has no such storages")
    gone = torch.zeros(10_000)
    with Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), state={"gone": gone}, signals=()) as checkpointer:
        gone.untyped_storage().resize_(0)
        with pytest.raises(CheckpointError, match=r"state/gone has no memory"):
            checkpointer.save(wait=True)


def test_complex_numbers_are_not_put_into_real_ones(tmp_path):
    with Checkpointer(tmp_path, model=torch.nn.Linear(2, 2, dtype=torch.complex64)) as checkpointer:
        checkpointer.save(wait=True)
    with Checkpointer(tmp_path, model=torch.nn.Linear(2, 2)) as checkpointer:
        with pytest.raises(CheckpointError, match="weight is of torch.complex64 in the checkpoint and of torch.float32 here"):
            checkpointer.restore()


def test_a_folder_whose_checkpoints_are_all_damaged_is_not_an_empty_one(tmp_path):
    model = torch.nn.Linear(4, 2)
    with Checkpointer(tmp_path, model=model) as checkpointer:
        assert checkpointer.restore() is None
        for _ in range(2):
            checkpointer.save(wait=True)
    for one in tmp_path.glob("step-*/manifest.json"):
        one.write_bytes(one.read_bytes()[:-20])
    for _ in range(2):
        # In this run, and in the next one, which finds them set aside.
        with Checkpointer(tmp_path, model=model) as checkpointer:
            with pytest.raises(CheckpointError, match=r"has no good checkpoint any more .* restore\(begin_anew=True\)"):
                checkpointer.restore()
    with Checkpointer(tmp_path, model=model) as checkpointer:
        assert checkpointer.restore(begin_anew=True) is None
        checkpointer.save(wait=True)
    with Checkpointer(tmp_path, model=model) as checkpointer:
        assert checkpointer.restore() is not None


class Versioned(torch.nn.Module):
    """Refuses what another version of it saved."""

    version = 1

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def get_extra_state(self):
        return {"version": self.version}

    def set_extra_state(self, state):
        if state["version"] != self.version:
            raise ValueError("another version")


@pytest.mark.parametrize("name", ["model", "other"])
def test_modules_that_refuse_by_themselves_leave_all_as_it_was(tmp_path, monkeypatch, name):
    def objects():
        return {"model": torch.nn.Linear(3, 3), "other": torch.nn.Linear(3, 3), name: torch.nn.Sequential(torch.nn.Linear(2, 2), Versioned())}

    saver = Checkpointer(tmp_path, **objects(), signals=())
    saver.save(wait=True)
    saver.close()
    monkeypatch.setattr(Versioned, "version", 2)
    here = objects()
    before = {name: [one.clone() for one in module.parameters()] for name, module in here.items()}
    saver = Checkpointer(tmp_path, **here, signals=())
    with pytest.raises(CheckpointError, match="another version"):
        saver.restore()
    for name, module in here.items():
        assert all(map(torch.equal, module.parameters(), before[name])), name


def test_what_cannot_be_written_to_is_refused_before_anything_is_set(tmp_path):
    def job():
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        model.register_buffer("mean", torch.zeros(1).expand(4))
        return model, Checkpointer(tmp_path, model=model, signals=())

    _, saver = job()
    saver.save(wait=True)
    saver.close()
    model, saver = job()
    before = [one.clone() for one in model.parameters()]
    with saver, pytest.raises(CheckpointError, match=r"model: mean cannot be written to"):
        saver.restore()
    assert all(map(torch.equal, model.parameters(), before))


# What another program may have put in the place of what a Checkpointer saves: (key, value), by what is asked for it.
MADE_UP = [
    ("step", "7"),
    ("step", None),
    ("step", 1.5),
    ("step", -1),
    ("step", True),
    ("step", 2**64),
    ("objects", []),
    ("objects", {"model": 3, "optimizer": 3}),
    ("objects", {"model": {"dict": {}}, "optimizer": {"dict": {"state": {"dict": {}}, "param_groups": 3}}}),
    ("shapes", [1]),
    ("shapes", {"optimizer": 5}),
    ("names", {"optimizer": 5}),
    ("names", {"optimizer": [1, None]}),
    ("shards", {"model/weight": 3}),
    ("own", {"dict": {"random": None}}),
    ("own", []),
    ("user", [1, 2]),
    ("user", "text"),
]


@pytest.mark.parametrize("key, value", MADE_UP, ids=repr)
def test_a_state_that_no_checkpointer_saves_is_refused_before_anything_is_set(tmp_path, monkeypatch, key, value):
    def job():
        model = torch.nn.Linear(3, 2)
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters())}

    with monkeypatch.context() as patched:
        patched.setattr(module_of, "to_bytes", lambda encoded: to_bytes({**encoded, key: value}))
        with Checkpointer(tmp_path, **job()) as checkpointer:
            checkpointer.save(wait=True)
    here, state = job(), {"best": 1}
    with Checkpointer(tmp_path, **here, state=state) as checkpointer:
        before = here["model"].weight.detach().clone()
        with pytest.raises(CheckpointError):
            checkpointer.restore()
        assert torch.equal(here["model"].weight, before) and state == {"best": 1}
        checkpointer.step()
        checkpointer.save(wait=True)


@pytest.mark.parametrize("value", [b"[]", b'{"dict":{}}'])
def test_a_state_of_more_values_than_any_is_refused_before_it_takes_their_memory(value, tmp_path):
    with pytest.raises(CheckpointError, match="lists and dicts and .* values in all, and one has at most 4,194,304 and 16,777,216"):
        from_bytes(b"[" + value + (b"," + value) * (1 << 22) + b"]")
    state = {"lists": [[] for _ in range(1 << 22)]}
    with Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), state=state, signals=()) as checkpointer:
        with pytest.raises(CheckpointError, match="the state to be saved has .* lists and dicts"):
            checkpointer.save(wait=True)
        # A sampler's numbers, as a list.
        state["lists"] = list(range(1 << 20))
        checkpointer.save(wait=True)
        state.clear()
        checkpointer.restore()
        assert state["lists"] == list(range(1 << 20))


def test_a_state_is_ascii_as_one_other_character_would_take_four_bytes_for_each():
    assert from_bytes(to_bytes({"\U0001f600": "\u00e4\ud800"})) == {"\U0001f600": "\u00e4\ud800"}
    with pytest.raises(CheckpointError, match="no JSON"):
        from_bytes('["\U0001f600"]'.encode())


def test_a_hole_where_the_state_was_is_refused_without_a_copy():
    hole = bytes(32 << 20)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="no JSON"):
        from_bytes(hole)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_parameters_without_a_shape_are_no_more_than_any_model_has():
    lazy = torch.nn.parameter.UninitializedParameter()
    with pytest.raises(CheckpointError, match="at most 65,536 parameters without a shape"):
        Writer().encode([lazy] * ((1 << 16) + 1), "state")
    with pytest.raises(CheckpointError, match="at most 65,536 parameters without a shape"):
        Reader({}, False).decode([{"lazy": "parameter"}] * ((1 << 16) + 1))
    assert len(Reader({}, False).decode(Writer().encode([lazy] * (1 << 10), "state"))) == 1 << 10


def test_what_an_interrupted_restore_leaves_is_never_saved(tmp_path, monkeypatch):
    def job(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters())}

    saved, here = job(1), job(2)
    saved["model"](torch.rand(3, 4)).sum().backward()
    saved["optimizer"].step()
    with Checkpointer(tmp_path, **saved, signals=()) as checkpointer:
        checkpointer.step()
        checkpointer.save(wait=True)
    expected = repr([one.state_dict() for one in saved.values()])
    with Checkpointer(tmp_path, **here, signals=(), every=1) as checkpointer:
        with monkeypatch.context() as patched:
            patched.setattr(restoring, "fill", interrupted)
            with pytest.raises(KeyboardInterrupt):
                checkpointer.restore()
        # Not memory that was to be read to.
        assert here["optimizer"].state_dict()["state"] == {}
        with pytest.raises(CheckpointError, match="step-000000001 was restored in part only"):
            checkpointer.save()
        with pytest.warns(RuntimeWarning, match="step-000000001 was restored in part only"):
            checkpointer.step()
        # One that is refused before it sets anything leaves the part that was set.
        with pytest.raises(CheckpointError):
            checkpointer.restore(7)
        with pytest.raises(CheckpointError, match="restored in part only"):
            checkpointer.save()
        assert checkpointer.restore().step == 1
        assert repr([one.state_dict() for one in here.values()]) == expected
        checkpointer.save(wait=True)
    assert sorted(name for name in os.listdir(tmp_path) if name.startswith("step-")) == ["step-000000001", "step-000000001.2"]


def interrupted(places):
    raise KeyboardInterrupt
