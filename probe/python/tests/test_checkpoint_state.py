"""States are taken apart and put together again as they were; nothing that could run code comes back unasked."""

import collections
import ctypes

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import CheckpointError, Checkpointer  # noqa: E402
from stallscope.checkpoint.copying import Copying  # noqa: E402
from stallscope.checkpoint.tree import Reader, Writer, from_bytes, to_bytes  # noqa: E402
from stallscope.checkpoint.when import seconds  # noqa: E402


def again(value, trust=False):
    writer = Writer()
    encoded = from_bytes(to_bytes(writer.encode(value, "it")))
    return Reader({name: tensor.clone() for name, tensor in writer.tensors.items()}, trust).decode(encoded)


def test_plain_data_comes_back_as_it_was():
    value = {
        "none": None,
        "numbers": [1, 2.5, float("inf"), True, -(2**70)],
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


def test_numpy_comes_back():
    numpy = pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")
    value = [numpy.arange(6.0).reshape(2, 3), numpy.float32(1.5), numpy.int64(-2)]
    back = again(value)
    assert numpy.array_equal(value[0], back[0]) and back[1:] == value[1:] and type(back[1]) is numpy.float32


class Runs:
    def __reduce__(self):
        return eval, ("1 + 1",)


def test_what_could_run_code_comes_back_only_for_who_trusts_it():
    with pytest.raises(CheckpointError, match="pass trust=True"):
        again({"x": Runs()})
    assert again({"x": Runs()}, trust=True) == {"x": 2}


def test_what_cannot_be_saved_is_told_at_once(tmp_path):
    with pytest.raises(CheckpointError, match="user/lock cannot be saved"):
        Checkpointer(tmp_path, state={"lock": (one for one in ())})
    with pytest.raises(TypeError, match="model: a int has no state_dict"):
        Checkpointer(tmp_path, model=3)
    with pytest.raises(TypeError, match="use stallscope.DataLoader"):
        Checkpointer(tmp_path, loader=[1, 2])


def test_a_changed_model_says_which_layer_before_anything_is_set(tmp_path):
    with Checkpointer(tmp_path, model=torch.nn.Linear(4, 2)) as checkpointer:
        checkpointer.save(wait=True)
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


def test_times_as_people_write_them():
    assert [seconds(time, "mtbf") for time in ("6h", "1h30m", "90s", 5, "2 d")] == [21600, 5400, 90, 5, 172800]
    for nonsense in ("6 weeks", "", "h", "6h?"):
        with pytest.raises(ValueError, match="is no time; write it as"):
            seconds(nonsense, "mtbf")
