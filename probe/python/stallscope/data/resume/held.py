"""What samplers of the script's own hold as plain data and change as they run: a count of epochs, a share that grows, a list that is
shuffled in place. The next epoch's order goes on from it.

Only what changed is kept: anything else is a setting, which a job that is started anew may have changed.
"""

import itertools
import marshal
import sys
import zlib

import torch

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset)
# Larger and deeper containers are not looked at, which would take a second; arrays and tensors of any size are.
_MOST_ELEMENTS, _DEEPEST = 2_000_000, 32


class Held:
    """Of one sampler. `before`: name -> digest, as it was at first."""

    def __init__(self, sampler, before):
        self.sampler, self.before = sampler, before

    def state(self):
        return {name: packed(value) for name, value in _attributes(self.sampler).items() if self._changed(name, value)} or None

    def set(self, state):
        there = _attributes(self.sampler)
        for name, value in state.items():
            if name in there:
                _put(self.sampler, name, unpacked(value))

    def scalars(self, names):
        """Of those that are a number or a text what changed, and what has one of these names."""
        found = {name: value for name, value in _attributes(self.sampler).items() if type(value) in _SCALARS}
        return {name: value for name, value in found.items() if name in names or self._changed(name, value)}

    def set_scalars(self, scalars):
        there = _attributes(self.sampler)
        for name, value in scalars.items():
            if name in there:
                setattr(self.sampler, name, value)

    def _changed(self, name, value):
        # An epoch that somebody sets is no setting, also before it is set.
        now = digest(value)
        return now is not None and (self.before.get(name, now) != now or name == "epoch" and hasattr(self.sampler, "set_epoch"))


def digests(sampler):
    """Name -> digest, of what shows what it holds."""
    found = {name: digest(value) for name, value in _attributes(sampler).items()}
    return {name: one for name, one in found.items() if one is not None}


def _attributes(sampler):
    """Those that may be kept. Of torch's own samplers all but the epoch are settings."""
    attributes = dict(getattr(sampler, "__dict__", {}))
    if type(sampler).__module__.partition(".")[0] in ("torch", "stallscope"):
        return {"epoch": attributes["epoch"]} if "epoch" in attributes else {}
    return attributes


def digest(value):
    """Equal for equal content; None of what is no plain data."""
    kind = type(value)
    if kind in _SCALARS or kind is range:
        return kind.__name__, repr(value)
    if kind is torch.Tensor:
        plain = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
        return _of_array(_tensor_bytes(value), value.dtype, value.shape) if plain else None
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray:
        return None if value.dtype.hasobject else _of_array(numpy.ascontiguousarray(value).tobytes(), value.dtype, value.shape)
    if numpy is not None and isinstance(value, numpy.generic):
        return None if value.dtype.hasobject else _of_array(value.tobytes(), value.dtype, ())
    return _of_container(value) if kind in _CONTAINERS and _count(value, _MOST_ELEMENTS) <= _MOST_ELEMENTS else None


def _of_container(value):
    kind = type(value)
    try:
        # Of an older version: newer ones tell how often an object is referred to, too.
        return kind.__name__, zlib.crc32(marshal.dumps(value, 2))
    except ValueError:
        # Batches as ranges or arrays, say.
        parts = [digest(one) for one in (itertools.chain(*value.items()) if kind is dict else value)]
        return None if None in parts or kind in (set, frozenset) else (kind.__name__, zlib.crc32(repr(parts).encode()))


def _tensor_bytes(tensor):
    content = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach().resolve_neg()
    return content.contiguous().reshape(-1).view(torch.uint8).numpy()


def _of_array(content, dtype, shape):
    return str(dtype), tuple(shape), zlib.crc32(content)


def _count(container, most):
    """Elements of it and of what it holds, as far as `most`."""
    count, level = len(container), [container]
    for _ in range(_DEEPEST):
        level = [one for outer in level for one in (outer.values() if type(outer) is dict else outer) if type(one) in _CONTAINERS]
        count += sum(map(len, level))
        if not level or count > most:
            return count
    return most + 1


def packed(value):
    """A copy: numbers and texts as they are, and all else in a dict that says what it is, with numbers of samples in tensors."""
    kind = type(value)
    if kind is torch.Tensor:
        return {"tensor": value.detach().clone()}
    if kind.__module__ == "numpy":
        return {"array": value.copy()}
    if kind is list:
        if _are_numbers(value):
            return {"numbers": torch.tensor(value, dtype=torch.int64)}
        if value and set(map(type, value)) == {list}:
            elements = list(itertools.chain.from_iterable(value))
            if _are_numbers(elements):
                return {"rows": torch.tensor(elements, dtype=torch.int64), "lengths": torch.tensor(list(map(len, value)))}
        return {"list": [packed(one) for one in value]}
    if kind is tuple:
        return {"tuple": [packed(one) for one in value]}
    if kind is dict:
        return {"keys": [packed(one) for one in value], "values": [packed(one) for one in value.values()]}
    if kind in (set, frozenset):
        return {"value": kind(value)}
    return {"value": value} if kind is range else value


def _are_numbers(values):
    return len(values) > 8 and set(map(type, values)) == {int} and -(1 << 63) <= min(values) and max(values) < 1 << 63


def unpacked(state):
    if type(state) is not dict:
        return state
    (kind, value), *more = state.items()
    if kind in ("tensor", "array", "value"):
        return value
    if kind == "numbers":
        return value.tolist()
    if kind == "rows":
        elements = iter(value.tolist())
        return [list(itertools.islice(elements, length)) for length in state["lengths"].tolist()]
    if kind == "keys":
        return dict(zip(map(unpacked, value), map(unpacked, more[0][1])))
    whole = [unpacked(one) for one in value]
    return tuple(whole) if kind == "tuple" else whole


def _put(sampler, name, value):
    """In place where it can be: other objects may have the same list or array."""
    there = getattr(sampler, name)
    if type(there) is type(value) is list:
        there[:] = value
    elif type(there) is type(value) is dict:
        there.clear()
        there.update(value)
    elif type(there) is type(value) and getattr(value, "shape", ()) and (there.shape, there.dtype) == (value.shape, value.dtype):
        with torch.no_grad():
            there[...] = value
    else:
        setattr(sampler, name, value)
