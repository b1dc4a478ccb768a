"""States that nobody has saved, as a checkpoint from elsewhere may have them: they are refused, before anything is done by them."""

import random
import subprocess
import sys

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
numpy = pytest.importorskip("numpy")

from pack_sets import program  # noqa: E402

import stallscope  # noqa: E402
from stallscope import _random  # noqa: E402
from stallscope.checkpoint import tree  # noqa: E402
from stallscope.checkpoint.errors import CheckpointError  # noqa: E402
from stallscope.data.resume import held, random_sources  # noqa: E402


def test_an_order_of_more_ranks_than_there_are_is_refused(tmp_path):
    draw = random.Random(1)
    for number in range(40):
        path = tmp_path / "set" / f"{number % 2}" / f"{number:04}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(1000))
    done = subprocess.run([program(), "pack", tmp_path / "set", "-o", tmp_path / "pack"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sampler = stallscope.PackedDataset(tmp_path / "pack").shuffled(stallscope.Shuffle(20, "40MiB"), 4)
    next(iter(sampler))
    state = sampler.state_dict()
    seed, lanes, window = state["at"]["recipe"]
    for lanes in (0, 1 << 62):
        with pytest.raises(ValueError, match="damaged"):
            sampler.load_state_dict({**state, "at": {**state["at"], "recipe": (seed, lanes, window)}})
    sampler.load_state_dict(state)


# numpy reads at the place in its buffer that the state names, wherever that is.
@pytest.mark.parametrize("at", [-(1 << 20), -1, 625, 1 << 28, None, 1.5])
def test_numbers_are_drawn_from_a_generators_own_memory(at):
    state = _random.capture()
    name, key, _, *rest = state["numpy"]
    with pytest.raises(ValueError, match="damaged"):
        _random.restore({**state, "numpy": (name, key, at, *rest)})
    for generator in (numpy.random.RandomState(1), numpy.random.Generator(numpy.random.MT19937(1))):
        one = random_sources.Numpys(generator)
        state = one.state()
        state["state"]["pos"] = at
        with pytest.raises(ValueError, match="damaged"):
            one.set(state)
    one = random_sources.Numpys(numpy.random.Generator(numpy.random.Philox(1)))
    with pytest.raises(ValueError, match="damaged"):
        one.set({**one.state(), "buffer_pos": at})
    one.set(one.state())


# Whole numbers of one hash.
ALIKE = [number * sys.hash_info.modulus for number in range(1, 200_001)]


@pytest.mark.parametrize("form", ["pairs", "ordered", "set", "counter", "defaultdict"])
def test_keys_of_one_hash_are_refused(form):
    keys = ALIKE if form == "set" else [[key, 1] for key in ALIKE]
    encoded = {form: [None, keys] if form == "defaultdict" else keys}
    with pytest.raises(CheckpointError, match="200000 of its keys have one hash"):
        tree.Reader({}, False).decode(encoded)
    assert tree.Reader({}, False).decode({form: [None, keys[:9]] if form == "defaultdict" else keys[:9]})


def test_keys_of_one_hash_are_no_samplers():
    with pytest.raises(ValueError, match="have one hash"):
        held.unpacked({"keys": ALIKE, "values": ALIKE})
    assert held.unpacked(held.packed({number: "x" for number in range(1000)})) == {number: "x" for number in range(1000)}
