"""A restore reads each tensor into the one that is there: it needs no memory for a second state, and sets what torch would."""

import copy
import os
import subprocess
import sys

import pytest
from collector import PACKAGE

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import Checkpointer, CheckpointError  # noqa: E402
from stallscope.checkpoint.restoring import Restoring  # noqa: E402

MIB = 1 << 20

# Restores 384 MiB of weights and moments into a job that has as many, with so many MiB of memory beyond what it has.
JOB = """
import resource, sys
import torch, stallscope
folder, spare_mib = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1 if spare_mib == 0 else 2)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=layer % 2 == 0) for layer in range(32)))
optimizer = torch.optim.Adam(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.rand_like(parameter)
optimizer.step()
with stallscope.Checkpointer(folder, model=model, optimizer=optimizer, every=10**9) as checkpointer:
    if spare_mib:
        status = dict(line.split(":") for line in open("/proc/self/status"))
        limit = int(status["VmData"].split()[0]) * 1024 + (spare_mib << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        checkpointer.restore()
    else:
        checkpointer.save(wait=True)
    tensors = list(model.parameters()) + [one[key] for one in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq", "step")]
    print([one.detach().view(-1)[:: 1 + one.numel() // 1000].sum().item() for one in tensors])
"""


def test_a_restore_needs_no_memory_for_a_second_state(tmp_path):
    def seen(spare_mib):
        command = [sys.executable, "-c", JOB, str(tmp_path), str(spare_mib)]
        done = subprocess.run(command, env={"PYTHONPATH": str(PACKAGE), "PATH": ""}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # What is read goes through a window of 64 MiB, and buffers of some 8 MiB a thread.
    saved = seen(spare_mib=0)
    assert seen(spare_mib=160) == saved


def trained(model, steps=2):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.rand_like(parameter)
        optimizer.step()
    return optimizer


class Renames(torch.nn.Module):
    """Loads the states of its earlier versions, as models do that have changed."""

    def __init__(self):
        super().__init__()
        self.now = torch.nn.Linear(40, 50)
        self.norm = torch.nn.Linear(40, 50)
        self._register_load_state_dict_pre_hook(self.rename)
        self.sums = []
        if hasattr(self, "register_load_state_dict_post_hook"):
            self.register_load_state_dict_post_hook(lambda module, _: self.sums.append(module.now.weight.sum().item()))

    def rename(self, state, prefix, *_):
        state[prefix + "now.weight"] = state[prefix + "now.weight"] * 2 + state[prefix + "norm.weight"]
        state[prefix + "norm.bias"], state[prefix + "now.bias"] = state[prefix + "now.bias"], state[prefix + "norm.bias"]


def linear(memory_format=torch.contiguous_format, dtype=torch.float32):
    return torch.nn.Sequential(torch.nn.Conv2d(8, 40, 5), torch.nn.Linear(60, 40)).to(memory_format=memory_format, dtype=dtype)


def tied():
    model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Linear(50, 50))
    model[1].weight = model[0].weight
    return model


def transposed():
    model = torch.nn.Linear(60, 40)
    model.weight = torch.nn.Parameter(torch.rand(60, 40).t())
    return model


CASES = {
    "hooks": (Renames, Renames),
    "another type": (linear, lambda: linear(dtype=torch.bfloat16)),
    "another order in memory": (linear, lambda: linear(torch.channels_last)),
    "from another order in memory": (lambda: linear(torch.channels_last), linear),
    "no order of its own": (transposed, transposed),
    "tied": (tied, tied),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "trained"])
def test_what_is_set_is_what_torch_would_set(tmp_path, case, fresh):
    then, now = CASES[case]
    torch.manual_seed(1)
    saved = then()
    optimizer = trained(saved)
    with Checkpointer(tmp_path, model=saved, optimizer=optimizer) as checkpointer:
        checkpointer.save(wait=True)
    here, by_torch = now(), now()
    its, its_by_torch = trained(here, 0 if fresh else 1), trained(by_torch, 0 if fresh else 1)
    with Checkpointer(tmp_path, model=here, optimizer=its) as checkpointer:
        checkpointer.restore()
    by_torch.load_state_dict(copy.deepcopy(saved.state_dict()))
    its_by_torch.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for (name, one), other in zip(here.state_dict().items(), by_torch.state_dict().values()):
        assert type(one) is torch.Tensor and one.dtype == other.dtype and torch.equal(one, other), name
        assert one.stride() == other.stride(), name
    assert getattr(here, "sums", None) == getattr(by_torch, "sums", None)
    assert list(its.state) == list(here.parameters())
    for one, other in zip(its.state.values(), its_by_torch.state.values()):
        assert list(one) == list(other)
        for key in one:
            assert type(one[key]) is torch.Tensor and one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]), key


def test_moments_stay_where_they_are(tmp_path):
    """A captured step that uses them, such as a CUDA graph, goes on with what was restored."""
    model = torch.nn.Linear(60, 40)
    optimizer = trained(model)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer) as checkpointer:
        checkpointer.save(wait=True)
        # No reference to them, which would keep what it refers to, as with torch.
        place = {key: optimizer.state[model.weight][key].data_ptr() for key in ("exp_avg", "exp_avg_sq")}
        before = copy.deepcopy(optimizer.state[model.weight])
        optimizer.state[model.weight]["exp_avg"].fill_(7)
        checkpointer.restore()
        assert place == {key: optimizer.state[model.weight][key].data_ptr() for key in place}
        assert all(torch.equal(one, before[key]) for key, one in optimizer.state[model.weight].items())


@pytest.mark.parametrize("saved_shares", [False, True], ids=["shared here", "shared then"])
def test_moments_that_share_memory_are_each_what_they_were(tmp_path, saved_shares):
    def made(shares):
        layer = torch.nn.Linear(60, 40, bias=False)
        optimizer = trained(layer)
        state = optimizer.state[layer.weight]
        if shares:
            state["exp_avg_sq"] = state["exp_avg"]
        return optimizer, state

    saved, then = made(saved_shares)
    with Checkpointer(tmp_path, optimizer=saved) as checkpointer:
        checkpointer.save(wait=True)
    here, _ = made(not saved_shares)
    with Checkpointer(tmp_path, optimizer=here) as checkpointer:
        checkpointer.restore()
    (state,) = here.state.values()
    assert all(torch.equal(state[key], then[key]) for key in then)


def expanded(parameter):
    return torch.rand(1).expand_as(parameter)


def of_inference(parameter):
    with torch.inference_mode():
        return torch.rand_like(parameter)


@pytest.mark.parametrize("made", [expanded, of_inference])
def test_a_state_that_cannot_be_written_to_is_replaced(tmp_path, made):
    def of(seed):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(60, 40)
        optimizer = trained(layer)
        for parameter in layer.parameters():
            optimizer.state[parameter]["factor"] = made(parameter)
        return layer, optimizer

    saved, optimizer = of(1)
    with Checkpointer(tmp_path, model=saved, optimizer=optimizer) as checkpointer:
        checkpointer.save(wait=True)
    here, its = of(2)
    with Checkpointer(tmp_path, model=here, optimizer=its) as checkpointer:
        checkpointer.restore()
    for one, other in zip(saved.parameters(), here.parameters()):
        assert torch.equal(one, other)
        assert all(torch.equal(optimizer.state[one][key], its.state[other][key]) for key in optimizer.state[one])


def test_a_moment_of_several_parameters_is_one_again(tmp_path):
    """As torch has it: what one of them adds to it the other finds."""

    def of(seed):
        torch.manual_seed(seed)
        layers = torch.nn.Sequential(torch.nn.Linear(60, 60, bias=False), torch.nn.Linear(60, 60, bias=False))
        optimizer = trained(layers)
        first, second = layers.parameters()
        optimizer.state[second]["exp_avg"] = optimizer.state[first]["exp_avg"]
        return layers, optimizer

    saved, optimizer = of(1)
    with Checkpointer(tmp_path, model=saved, optimizer=optimizer) as checkpointer:
        checkpointer.save(wait=True)
    here, its = of(2)
    with Checkpointer(tmp_path, model=here, optimizer=its) as checkpointer:
        checkpointer.restore()
    first, second = (its.state[parameter] for parameter in here.parameters())
    assert first["exp_avg"] is second["exp_avg"] and first["exp_avg_sq"] is not second["exp_avg_sq"]
    assert torch.equal(first["exp_avg"], next(iter(optimizer.state.values()))["exp_avg"])


class Slow(torch.optim.SGD):
    """Keeps a slow copy of each parameter, which is the parameter itself until the first step."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["slow"] = parameter.data


def test_a_state_that_is_a_parameter_here_is_one_of_its_own_when_it_was_saved_so(tmp_path):
    saved = torch.nn.Linear(60, 40, bias=False)
    optimizer = Slow(saved.parameters())
    slow = optimizer.state[saved.weight]["slow"] = torch.zeros(40, 60)
    with Checkpointer(tmp_path, model=saved, optimizer=optimizer) as checkpointer:
        checkpointer.save(wait=True)
    here = torch.nn.Linear(60, 40, bias=False)
    optimizer = Slow(here.parameters())
    with Checkpointer(tmp_path, model=here, optimizer=optimizer) as checkpointer:
        checkpointer.restore()
    assert torch.equal(here.weight, saved.weight)
    assert torch.equal(optimizer.state[here.weight]["slow"], slow)


class Halving(torch.optim.SGD):
    """Changes what it was given in place."""

    def __setstate__(self, state):
        super().__setstate__(state)
        for one in self.state.values():
            one["momentum_buffer"].mul_(0.5)


def test_what_an_optimiser_does_to_its_state_as_it_takes_it_is_done(tmp_path):
    def made():
        layer = torch.nn.Linear(60, 40, bias=False)
        optimizer = Halving(layer.parameters(), lr=0.1, momentum=0.9)
        layer(torch.ones(60)).sum().backward()
        optimizer.step()
        return layer, optimizer

    layer, optimizer = made()
    before = optimizer.state[layer.weight]["momentum_buffer"].clone()
    with Checkpointer(tmp_path, optimizer=optimizer, signals=()) as checkpointer:
        checkpointer.save(wait=True)
    layer, optimizer = made()
    with Checkpointer(tmp_path, optimizer=optimizer, signals=()) as checkpointer:
        checkpointer.restore()
    assert torch.equal(optimizer.state[layer.weight]["momentum_buffer"], before / 2)


class Compiled(torch.nn.Module):
    """Names the module within as torch.compile does, and has a layer of its own."""

    def __init__(self):
        super().__init__()
        self._orig_mod = torch.nn.Linear(3, 3)
        self.head = torch.nn.Linear(3, 3)


class Parallel(torch.nn.DataParallel):
    def __init__(self):
        super().__init__(torch.nn.Linear(3, 3))
        self.head = torch.nn.Linear(3, 3)


@pytest.mark.parametrize("kind", [Compiled, Parallel])
def test_a_wrapper_with_parameters_of_its_own_is_saved_whole(tmp_path, kind):
    saved, here = kind(), kind()
    with Checkpointer(tmp_path, model=saved, signals=()) as checkpointer:
        checkpointer.save(wait=True)
    with Checkpointer(tmp_path, model=here, signals=()) as checkpointer:
        checkpointer.restore()
    assert all(torch.equal(one, other) for one, other in zip(here.parameters(), saved.parameters()))


def test_a_disk_that_fails_behind_the_checks_is_reported_and_the_next_restore_is_whole(tmp_path, monkeypatch):
    model = torch.nn.Linear(1200, 1200)
    optimizer = trained(model)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, every=10**9) as checkpointer:
        checkpointer.step()
        checkpointer.save(wait=True)
        first = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        optimizer.step()
        checkpointer.step()
        checkpointer.save(wait=True)
        shard, finish = tmp_path / "step-000000002" / "shard-0.safetensors", Restoring.finish

        def finish_on_a_bad_disk(restoring):
            monkeypatch.setattr(Restoring, "finish", finish)
            data = bytearray(shard.read_bytes())
            data[len(data) // 2] ^= 1
            shard.write_bytes(data)
            return finish(restoring)

        monkeypatch.setattr(Restoring, "finish", finish_on_a_bad_disk)
        with pytest.raises(CheckpointError, match=r"does not hold what was saved, which was whole a moment ago: a part of the state here is"):
            checkpointer.restore()
        start = checkpointer.restore()
        assert start.step == 1 and [name for name, _ in start.passed] == ["step-000000002"]
    assert repr((model.state_dict(), optimizer.state_dict())) == repr(first)
    assert all(torch.equal(one, first[0][name]) for name, one in model.state_dict().items())


class Queue(torch.nn.Linear):
    """Keeps a tensor of its own."""

    def __init__(self):
        super().__init__(2, 2)
        self.queue = torch.zeros(3)

    def get_extra_state(self):
        return {"queue": self.queue}

    def set_extra_state(self, state):
        self.queue = state["queue"]


def test_what_code_of_the_scripts_keeps_of_a_state_is_a_tensor(tmp_path):
    model = Queue()
    model.queue += 5
    with Checkpointer(tmp_path, model=model, signals=()) as saver:
        saver.save(wait=True)
    other = Queue()
    with Checkpointer(tmp_path, model=other, signals=()) as saver:
        saver.restore()
    assert type(other.queue) is torch.Tensor and other.queue.tolist() == [5, 5, 5]
    assert torch.equal(other.weight, model.weight)


def test_a_hook_that_changes_what_was_loaded_has_its_way(tmp_path):
    if not hasattr(torch.optim.Optimizer, "register_load_state_dict_post_hook"):
        pytest.skip("SKIPPED: this torch has no such hooks")

    def halved(optimizer):
        for state in optimizer.state.values():
            state["exp_avg"].mul_(0.5)

    model = torch.nn.Linear(3, 3)
    optimizer = trained(model)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, signals=()) as saver:
        saver.save(wait=True)
    as_torch = torch.optim.Adam(model.parameters(), lr=0.1)
    ours = torch.optim.Adam(model.parameters(), lr=0.1)
    for one in (as_torch, ours):
        one.register_load_state_dict_post_hook(halved)
    as_torch.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with Checkpointer(tmp_path, model=model, optimizer=ours, signals=()) as saver:
        saver.restore()
    for one, other in zip(as_torch.state.values(), ours.state.values()):
        assert torch.equal(one["exp_avg"], other["exp_avg"])


def test_a_forked_child_is_refused_and_pointed_to_its_parent(tmp_path):
    with Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), signals=()) as saver:
        child = os.fork()
        if child == 0:
            try:
                saver.save(wait=True)
            except CheckpointError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        saver.save(wait=True)


def test_the_folder_stays_where_it_was_though_the_job_goes_elsewhere(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name / "ckpts").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "first")
    with Checkpointer("ckpts", model=torch.nn.Linear(2, 2), signals=()) as saver:
        saver.save(wait=True)
        os.chdir(tmp_path / "second")
        saver.step()
        saver.save(wait=True)
    assert not any((tmp_path / "second" / "ckpts").iterdir())
    with Checkpointer(tmp_path / "first" / "ckpts", model=torch.nn.Linear(2, 2), signals=()) as saver:
        assert saver.restore().step == 1
