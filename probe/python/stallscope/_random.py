"""The random generators of this process: Python's, numpy's and torch's, as one state.

Only those that are loaded: numpy and CUDA are not brought in for it.
"""

import random
import sys

import torch

from stallscope._hooks import modes

_MASK = (1 << 64) - 1


def seed(number):
    """Seeds those of the CPU by 64 bits."""
    random.seed(number)
    torch.default_generator.manual_seed(number & (_MASK >> 1))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        try:
            numpy.random.seed(number & 0xFFFFFFFF)
        except TypeError:
            # numpy seeds no other generator that the script has put in the place of its own.
            bits = numpy.random.get_bit_generator()
            bits.state = type(bits)(number & 0xFFFFFFFF).state


def capture(devices=True):
    """The state of all of them, or of the CPU's alone; plain data and bytes."""
    state = {"python": random.getstate(), "torch": generator_bytes(torch.default_generator)}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpys = numpy.random.get_state(legacy=False)
        if numpys["bit_generator"] == "MT19937":
            words = numpys["state"]
            numpys = ("MT19937", words["key"].tobytes(), words["pos"], numpys["has_gauss"], numpys["gauss"])
        state["numpy"] = _plain(numpys)
    if devices and torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = [tensor_bytes(one) for one in torch.cuda.get_rng_state_all()]
    return state


def restore(state):
    """Sets those that `state` has and this process, too. A device that was not there keeps what it has."""
    random.setstate(state["python"])
    set_generator(torch.default_generator, state["torch"])
    if "numpy" in state:
        import numpy

        numpys = state["numpy"]
        if isinstance(numpys, dict):
            numpys = _with_arrays(numpys)
        else:
            name, key, *rest = numpys
            numpys = name, numpy.frombuffer(key, dtype=numpy.uint32), *rest
        numpy.random.set_state(within_buffer(numpys))
    if "cuda" in state and torch.cuda.is_available():
        for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_bytes_tensor(one), device)


# Where a generator of numpy's is in its buffer, and how much that has. numpy takes any number, and reads what lies there.
_BUFFERS = {"MT19937": ("pos", 624), "Philox": ("buffer_pos", 4)}


def within_buffer(state):
    """`state`, of a generator of numpy's. ValueError where it would be read from outside of the generator's buffer."""
    is_tuple = isinstance(state, tuple)
    kind = state[0] if is_tuple else state.get("bit_generator")
    name, most = _BUFFERS.get(kind, (None, 0))
    if name is None:
        return state
    at = state[2] if is_tuple else {**state, **state["state"]}.get(name)
    if type(at) is not int or not 0 <= at <= most:
        raise ValueError(f"the state of a {kind} is damaged: it is at {at!r}, of {most}")
    return state


def equal(one, other):
    """Whether two states of a generator, of any kind, are the same."""
    return _plain(one) == _plain(other)


def _plain(state):
    """With bytes in the place of numpy's arrays, so that it can be compared."""
    if isinstance(state, dict):
        return {name: _plain(one) for name, one in state.items()}
    return {"words": [state.dtype.str, state.tobytes()]} if hasattr(state, "dtype") else state


def _with_arrays(state):
    import numpy

    if not isinstance(state, dict):
        return state
    if state.keys() == {"words"}:
        kind, words = state["words"]
        return numpy.frombuffer(words, dtype=kind).copy()
    return {name: _with_arrays(one) for name, one in state.items()}


def generator_bytes(generator):
    """`generator`'s state, which has no use but for `set_generator`."""
    with modes.unseen():
        return tensor_bytes(generator.get_state())


def set_generator(generator, state):
    with modes.unseen():
        generator.set_state(_bytes_tensor(state))


def tensor_bytes(tensor):
    try:
        return tensor.numpy().tobytes()
    except RuntimeError:
        # A torch without numpy.
        return bytes(tensor.tolist())


def _bytes_tensor(data):
    # A copy: what comes from bytes must not be written to.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
