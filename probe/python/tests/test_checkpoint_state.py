"""States are taken apart and put together again as they were; nothing that could run code comes back unasked."""

import collections
import ctypes

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path
from unwarned import unwarned

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import Checkpointer, CheckpointError  # noqa: E402
from stallscope.checkpoint.copying import Copying  # noqa: E402
from stallscope.checkpoint.device import Device  # noqa: E402
from stallscope.checkpoint.tree import Reader, Writer, from_bytes, to_bytes  # noqa: E402
from stallscope.checkpoint.when import seconds  # noqa: E402


def again(value, trust=False):
    writer = Writer()
    encoded = from_bytes(to_bytes(writer.encode(value, "it")))
    return Reader({name: tensor.clone() for name, tensor in writer.tensors.items()}, trust).decode(encoded)


def test_plain_data_comes_back_as_it_was():
    value = {
        "none": None,
        "numbers": [1, 2.5, float("inf"), True, -(2**70), 3**20_000, -(3**20_000)],
        "tuple": (1, ("a", b"\x00\xff")),
        3: {"int keys": {0: "x", (1, "y"): "z"}},
        "set": {1, 2},
        "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cpu")],
        "ordered": collections.OrderedDict(b=1, a=2),
    }
    back = again(value)
    assert back == value and type(back["ordered"]) is collections.OrderedDict and type(back["tuple"]) is tuple
    assert list(back["ordered"]) == ["b", "a"]


def test_tensors_keep_type_shape_and_memory_order():
    image = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    tensors = [torch.rand(3), torch.tensor(7), torch.zeros(0, 4), torch.rand(4, 6).t(), image, torch.rand(9)[::2]]
    tensors += [torch.ones(2, dtype=dtype) for dtype in (torch.bool, torch.bfloat16, torch.float64, torch.complex64)]
    for before, after in zip(tensors, again(tensors)):
        assert torch.equal(before, after) and before.dtype == after.dtype
    assert again(image).stride() == image.stride()


def test_tied_tensors_are_kept_once():
    weight = torch.rand(5)
    writer = Writer()
    writer.encode({"a": weight, "b": weight.detach(), "c": weight[:2]}, "model")
    assert list(writer.tensors) == ["model/a", "model/c"]


def test_what_trains_comes_back_as_what_trains():
    prompt, frozen, latent = torch.nn.Parameter(torch.rand(3)), torch.nn.Parameter(torch.rand(2), False), torch.rand(2, requires_grad=True)
    back = again({"prompt": prompt, "twice": [prompt], "plain": prompt.detach(), "frozen": frozen, "latent": latent})
    for name, before in (("prompt", prompt), ("frozen", frozen), ("latent", latent)):
        after = back[name]
        assert (type(after), after.requires_grad, after.is_leaf) == (type(before), before.requires_grad, True)
        assert torch.equal(after, before)
    assert back["twice"][0] is back["prompt"] and type(back["plain"]) is torch.Tensor and not back["plain"].requires_grad
    assert back["plain"].data_ptr() == back["prompt"].data_ptr()


def test_names_that_no_file_can_have_are_saved():
    back = again({"\ud800": torch.ones(2), "\ud801": torch.zeros(2)})  # noqa: F601
    assert [(key, one.tolist()) for key, one in back.items()] == [("\ud800", [1, 1]), ("\ud801", [0, 0])]


def test_a_lazy_model_and_objects_of_any_name_start_again(tmp_path):
    def job():
        model, user = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 1)), torch.nn.Linear(3, 3)
        state = {"weight": torch.ones(9)}
        return model, state, Checkpointer(tmp_path, model=model, user=user, own=torch.nn.Linear(2, 2), state=state, signals=())

    model, _, saver = job()
    model(torch.ones(2, 4))
    saver.step()
    saver.save(wait=True)
    saver.close()
    again_model, state, saver = job()
    state.clear()
    saver.restore()
    saver.close()
    assert all(map(torch.equal, again_model.state_dict().values(), model.state_dict().values()))
    assert state["weight"].tolist() == [1] * 9


def test_what_an_optimiser_trains_and_nobody_saves_is_named_at_once(tmp_path):
    model, prompt = torch.nn.Linear(3, 3), torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([*model.parameters(), prompt])
    with pytest.warns(RuntimeWarning, match=r"optimizer trains a parameter of no object given here \(of shape \[3\]\)"):
        Checkpointer(tmp_path / "a", model=model, optimizer=optimizer, signals=()).close()
    with unwarned():
        Checkpointer(tmp_path / "b", model=model, optimizer=optimizer, state={"prompt": prompt}, signals=()).close()


def test_numpy_comes_back():
    numpy = pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")
    value = [numpy.arange(6.0).reshape(2, 3), numpy.float32(1.5), numpy.int64(-2)]
    value += [numpy.asfortranarray(value[0]), numpy.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)]
    back = again(value)
    assert [one.strides for one in back[3:]] == [one.strides for one in value[3:]]
    assert all(map(numpy.array_equal, value[3:], back[3:]))
    value, back = value[:3], back[:3]
    assert numpy.array_equal(value[0], back[0]) and back[1:] == value[1:] and type(back[1]) is numpy.float32


class Average:
    """Keeps what it is given, as an average of one's own does."""

    def __init__(self, device):
        self.shadow = [torch.rand(3, device=device)]

    def state_dict(self):
        return {"shadow": self.shadow}

    def load_state_dict(self, state):
        self.shadow = state["shadow"]


def test_what_is_restored_lies_where_the_job_has_it(tmp_path):
    weight = torch.nn.Parameter(torch.rand(2))
    with Checkpointer(tmp_path, state={"a": torch.ones(3), "twice": (weight, [weight, 1]), "new": torch.ones(1)}, average=Average("cpu"), signals=()) as saver:
        saver.save(wait=True)
    elsewhere = torch.nn.Parameter(torch.rand(2, device="meta"))
    state = {"a": torch.ones(3, device="meta"), "twice": (elsewhere, [elsewhere]), "b": 1}
    average = Average("meta")
    with Checkpointer(tmp_path, state=state, average=average, signals=()) as saver:
        saver.restore()
    assert [state["a"].device.type, state["new"].device.type, average.shadow[0].device.type] == ["meta", "cpu", "meta"]
    first, (second, number) = state["twice"]
    assert first is second and type(first) is torch.nn.Parameter and first.device.type == "meta" and number == 1


def test_what_an_optimiser_has_beside_its_parameters_lies_where_the_job_has_it(tmp_path):
    def made(device):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.rand(2))], lr=0.1)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device=device)
        optimizer.state["all"] = {"mean": torch.rand(3, device=device)}
        return optimizer

    with Checkpointer(tmp_path, optimizer=made("cpu"), signals=()) as saver:
        saver.save(wait=True)
    optimizer = made("meta")
    with Checkpointer(tmp_path, optimizer=optimizer, signals=()) as saver:
        saver.restore()
    assert [optimizer.param_groups[0]["lr"].device.type, optimizer.state["all"]["mean"].device.type] == ["meta", "meta"]


class Runs:
    def __reduce__(self):
        return eval, ("1 + 1",)


def test_what_could_run_code_comes_back_only_for_who_trusts_it():
    with pytest.raises(CheckpointError, match="pass trust=True"):
        again({"x": Runs()})
    assert again({"x": Runs()}, trust=True) == {"x": 2}


def test_what_cannot_be_saved_is_named_at_once(tmp_path):
    with pytest.raises(CheckpointError, match="state/lock cannot be saved"):
        Checkpointer(tmp_path, state={"lock": (one for one in ())})
    with pytest.raises(TypeError, match="model: a int has no state_dict"):
        Checkpointer(tmp_path, model=3)
    with pytest.raises(TypeError, match="use stallscope.DataLoader"):
        Checkpointer(tmp_path, loader=[1, 2])


def test_what_cannot_be_saved_from_the_first_step_on_ends_no_training(tmp_path):
    state, model = {}, torch.nn.Linear(2, 2)
    with Checkpointer(tmp_path, model=model, state=state, every=1, signals=()) as saver:
        state["lock"] = (one for one in ())
        with pytest.warns(RuntimeWarning, match="state/lock cannot be saved"):
            saver.step()
            saver.step()
        del state["lock"]
        saver.step()
        saver.save(wait=True)
        assert saver.restore().step == 3


def test_nested_tensors_are_saved_for_who_trusts_them(tmp_path):
    state = {"nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}
    with Checkpointer(tmp_path, state=state, trust=True, signals=()) as saver:
        saver.save(wait=True)
        state.clear()
        saver.restore()
    assert [one.tolist() for one in state["nested"].unbind()] == [[1, 1], [1, 1, 1]]


class Mean:
    """Of losses, with what they were computed from."""

    def __init__(self):
        self.losses = [torch.zeros(())]

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = state["losses"]


def test_what_cannot_be_copied_is_restored(tmp_path):
    mean, weight = Mean(), torch.nn.Parameter(torch.ones(2))
    with Checkpointer(tmp_path, mean=mean, signals=()) as saver:
        saver.save(wait=True)
        mean.losses.append(weight.sum())
        saver.restore()
    assert mean.losses == [torch.zeros(())]


class Snapshot:
    def __init__(self, places):
        self.places = places

    def memory(self):
        return 4096, 8192

    def place(self, at):
        return self.places[at]


class FakeDevice:
    """Copies as a driver would: to the address, when it is waited for."""

    def __init__(self):
        self.asked, self.pinned = [], None

    def pin(self, address, size):
        self.pinned = (address, size)

    def copy(self, tensor, address, size):
        self.asked.append((tensor, address, size))

    def wait(self):
        for tensor, address, size in self.asked:
            data = bytes(range(size))
            ctypes.memmove(address, data, size)


def test_a_devices_tensors_are_copied_by_the_device():
    target = ctypes.create_string_buffer(8)

    class Saver:
        def snapshot(self, listed, still):
            assert [address is None for _, _, _, address in listed] == [False, True] and still == [0]
            return Snapshot({1: (ctypes.addressof(target), 8)})

    device = FakeDevice()
    tensors = {"here": torch.ones(3), "there": torch.empty(2, device="meta")}
    _, copied_bytes = Copying(Saver(), device).snapshot(tensors, {"here"})
    assert target.raw == bytes(range(8)) and copied_bytes == 20 and device.pinned == (4096, 8192)


class Runtime:
    """CUDA's, as far as memory is registered with it; refuses what lies at 16384."""

    def __init__(self):
        self.registered, self.synchronized = {}, []

    def cudaHostRegister(self, address, size, flags):
        if address == 16384:
            return 1
        assert address not in self.registered
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address):
        del self.registered[address]
        return 0


def test_memory_is_unpinned_before_it_goes_and_only_where_the_driver_took_it(monkeypatch):
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", runtime.synchronized.append)
    device = Device()
    for address, size in ((4096, 100), (4096, 100), (4096, 300), (8192, 10), (16384, 10), (16384, 10)):
        device.pin(address, size)
    assert runtime.registered == {4096: 300, 8192: 10}
    target = (ctypes.c_float * 3)()
    device.copy(torch.ones(3), ctypes.addressof(target), 12)
    device.copy(torch.empty(0, 4), 0, 0)
    device.wait()
    assert list(target) == [1, 1, 1] and runtime.synchronized == [torch.device("cpu")]
    device.close()
    assert runtime.registered == {}


def test_times_as_people_write_them():
    assert [seconds(time, "mtbf") for time in ("6h", "1h30m", "90s", 5, "2 d")] == [21600, 5400, 90, 5, 172800]
    for nonsense in ("6 weeks", "", "h", "6h?"):
        with pytest.raises(ValueError, match="is no time; write it as"):
            seconds(nonsense, "mtbf")


def optimizers():
    """Every one that torch has, with what makes it step on dense matrices."""
    special = {"Optimizer", "SparseAdam"}
    found = [one for name, one in sorted(vars(torch.optim).items()) if isinstance(one, type) and name not in special]
    return [one for one in found if issubclass(one, torch.optim.Optimizer)]


def trained(optimizer_class, steps, matrix):
    """A model, its optimizer and what trains them for a step. All parameters are matrices, which every optimizer takes."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(*size, bias=False) for size in matrix))
    optimizer = optimizer_class(model.parameters(), lr=0.01)

    def step():
        torch.manual_seed(2)
        samples = torch.randn(8, matrix[0][0])

        def closure():
            optimizer.zero_grad()
            loss = model(samples).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    for _ in range(steps):
        step()
    return model, optimizer, step


@pytest.mark.parametrize("optimizer_class", optimizers(), ids=lambda one: one.__name__)
def test_every_optimizer_goes_on_as_if_nothing_had_been(tmp_path, optimizer_class):
    square, wide = [(6, 6), (6, 4)], [(6, 8), (8, 4)]
    model, optimizer, step = trained(optimizer_class, 3, square)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer) as checkpointer:
        checkpointer.save(wait=True)
    step()
    again, its, go_on = trained(optimizer_class, 1, square)
    with Checkpointer(tmp_path, model=again, optimizer=its) as checkpointer:
        assert checkpointer.restore() is not None
    go_on()
    for before, after in zip(model.parameters(), again.parameters()):
        assert torch.equal(before, after)
    _, other, _ = trained(optimizer_class, 1, wide)
    with Checkpointer(tmp_path, optimizer=other) as checkpointer:
        with pytest.raises(CheckpointError, match=r"parameter 0 is \[6, 6\] in the checkpoint and \[8, 6\] here"):
            checkpointer.restore()


by = torch.optim.lr_scheduler
SCHEDULERS = {
    "ChainedScheduler": lambda it: by.ChainedScheduler([by.ConstantLR(it, total_iters=2), by.StepLR(it, 2)]),
    "CosineAnnealingLR": lambda it: by.CosineAnnealingLR(it, T_max=9),
    "CosineAnnealingWarmRestarts": lambda it: by.CosineAnnealingWarmRestarts(it, T_0=2),
    "CyclicLR": lambda it: by.CyclicLR(it, base_lr=0.01, max_lr=0.1, step_size_up=2),
    "ExponentialLR": lambda it: by.ExponentialLR(it, gamma=0.9),
    "LambdaLR": lambda it: by.LambdaLR(it, lambda epoch: 0.9**epoch),
    "LinearLR": lambda it: by.LinearLR(it, total_iters=5),
    "MultiStepLR": lambda it: by.MultiStepLR(it, milestones=[2, 5]),
    "MultiplicativeLR": lambda it: by.MultiplicativeLR(it, lambda epoch: 0.9),
    "OneCycleLR": lambda it: by.OneCycleLR(it, max_lr=0.1, total_steps=20),
    "PolynomialLR": lambda it: by.PolynomialLR(it, total_iters=5),
    "ReduceLROnPlateau": lambda it: by.ReduceLROnPlateau(it, patience=0),
    "SequentialLR": lambda it: by.SequentialLR(it, [by.ConstantLR(it, total_iters=2), by.StepLR(it, 2)], milestones=[4]),
    "StepLR": lambda it: by.StepLR(it, step_size=2),
}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("name", [name for name in SCHEDULERS if hasattr(by, name)])
def test_every_scheduler_goes_on_as_if_nothing_had_been(tmp_path, name):
    def begun():
        optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.05, momentum=0.9)
        return optimizer, SCHEDULERS[name](optimizer)

    def rates(optimizer, scheduler, steps):
        found = []
        for _ in range(steps):
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            found.append(optimizer.param_groups[0]["lr"])
        return found

    (optimizer, scheduler), (its, again) = begun(), begun()
    rates(optimizer, scheduler, 3)
    with Checkpointer(tmp_path, optimizer=optimizer, scheduler=scheduler) as checkpointer:
        checkpointer.save(wait=True)
    with Checkpointer(tmp_path, optimizer=its, scheduler=again) as checkpointer:
        assert checkpointer.restore() is not None
    assert rates(optimizer, scheduler, 5) == rates(its, again, 5)


def ordered(order, groups=1, named=False):
    """Two layers of the same shape and AdamW over their parameters in such an order, in groups with rates of their own."""
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    parameters = list(model.named_parameters() if named else model.parameters())
    given = [parameters[place] for place in order]
    size = len(given) // groups
    return model, torch.optim.AdamW([{"params": given[at : at + size], "lr": 0.1 / (at + 1)} for at in range(0, len(given), size)])


def stepped(model, optimizer, steps):
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return [one.tolist() for one in model.parameters()], [optimizer.state[one]["exp_avg"].tolist() for one in model.parameters()]


@pytest.mark.parametrize(
    ("order", "groups", "named"), [([2, 1, 0, 3], 1, False), ([3, 1, 2, 0], 1, False), ([2, 0, 3, 1], 2, False), ([2, 1, 0, 3], 1, True)]
)
def test_an_optimisers_moments_go_to_the_parameters_that_they_are_of_in_whatever_order(tmp_path, order, groups, named):
    if named and not hasattr(torch.optim.Optimizer, "_process_value_according_to_param_policy"):
        pytest.skip("SKIPPED: optimisers of this torch take no names")
    first = [0, 2, 1, 3] if groups == 2 else [0, 1, 2, 3]
    model, optimizer = ordered(first, groups, named)
    stepped(model, optimizer, 3)
    with Checkpointer(tmp_path / "kept", model=model, optimizer=optimizer) as checkpointer:
        checkpointer.save(wait=True)
    expected = stepped(model, optimizer, 2)
    model, optimizer = ordered(order, groups, named)
    with Checkpointer(tmp_path / "kept", model=model, optimizer=optimizer) as checkpointer:
        checkpointer.restore()
    assert stepped(model, optimizer, 2) == expected


def test_a_parameter_in_another_group_than_it_was_in_is_refused(tmp_path):
    model, optimizer = ordered([0, 2, 1, 3], 2)
    stepped(model, optimizer, 1)
    with Checkpointer(tmp_path / "kept", model=model, optimizer=optimizer) as checkpointer:
        checkpointer.save(wait=True)
    model, optimizer = ordered([0, 1, 2, 3], 2)
    before = [one.tolist() for one in model.parameters()]
    with Checkpointer(tmp_path / "kept", model=model, optimizer=optimizer) as checkpointer:
        with pytest.raises(CheckpointError, match="optimizer: model/0.bias is in another of its groups than in the checkpoint: give it the same"):
            checkpointer.restore()
    assert [one.tolist() for one in model.parameters()] == before and not optimizer.state


@pytest.mark.skipif(not hasattr(torch, "set_default_device"), reason="this torch has no default device")
def test_a_default_device_changes_nothing(tmp_path):
    def job():
        model = torch.nn.Linear(3, 3, device="cpu")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 3, device="cpu")).sum().backward()
        optimizer.step()
        state = {"large": torch.rand(3000, device="cpu"), "turned": torch.rand(40, 50, device="cpu").t()}
        return model, state, Checkpointer(tmp_path, model=model, optimizer=optimizer, state=state, signals=())

    torch.set_default_device("meta")
    try:
        model, saved, saver = job()
        saver.save(wait=True)
        saver.close()
        again_model, state, saver = job()
        saver.restore()
        saver.close()
    finally:
        torch.set_default_device("cpu")
    assert all(map(torch.equal, again_model.state_dict().values(), model.state_dict().values()))
    assert all(map(torch.equal, state.values(), saved.values()))


def test_a_look_before_the_checkpointer_is_made_is_no_epoch(tmp_path):
    import stallscope

    def saved(look, folder):
        loader = stallscope.DataLoader(range(8), batch_size=4)
        if look:
            next(iter(loader))
        with Checkpointer(tmp_path / folder, loader=loader) as checkpointer:
            batches = iter(loader)
            next(batches)
            checkpointer.step()
            checkpointer.save(wait=True)
            return checkpointer.restore().epoch

    assert saved(False, "without") == saved(True, "with") == 0
