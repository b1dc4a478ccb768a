"""What samplers of the script's own hold as plain data and change as they run: a count of epochs, a share that grows, a list that is
shuffled in place. The next epoch's order goes on from it.

Only what changed is kept: anything else is a setting, which a job that is started anew may have changed.
"""

import contextlib
import itertools
import marshal
import sys
import types
import zlib
from array import array

import torch.utils.data

from stallscope._keys import distinguishable

from . import opaque

_SCALARS = opaque.SCALARS
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))
# Larger and deeper containers are not looked at, which would take a second; arrays and tensors of any size are.
_MOST_ELEMENTS, _DEEPEST = 2_000_000, 32
# Of torch's samplers what no argument of another sampler stands for, and scripts set between epochs.
_TURNED = {torch.utils.data.WeightedRandomSampler: "weights", torch.utils.data.SubsetRandomSampler: "indices"}
# Whose classes have no attributes that are the state of a script's sampler.
_NOT_OWN = frozenset(("torch", "stallscope", "builtins", "typing", "typing_extensions", "abc", "collections"))


class Held:
    """Of one sampler. `before`: name -> what tells whether it changed since, as it was at first: of plain data, and of what else can be seen."""

    def __init__(self, sampler, before):
        self.sampler, self.before = sampler, before

    def state(self):
        kept = {name: self._packed(name, value) for name, value in _attributes(self.sampler).items() if self._is_kept(name, value)}
        # Of its class, where it is changed in place; what is assigned there is another one's, too.
        in_place = {name: value for name, value in _defaults(self.sampler).items() if _is_put_in_place(value)}
        kept.update((name, packed(value)) for name, value in in_place.items() if self._is_kept(name, value))
        return kept or None

    def _packed(self, name, value):
        # Where it is another object than at first, what else has that first one does not change with it.
        first = getattr(self.before.get(name), "first", value)
        return packed(value) if first is value else {"assigned": packed(value)}

    def set(self, state):
        for name, value in state.items():
            if self._takes(name):
                assigned = type(value) is dict and value.get("assigned")
                with contextlib.suppress(AttributeError):
                    if assigned:
                        setattr(self.sampler, name, unpacked(assigned))
                    else:
                        _put(self.sampler, name, unpacked(value))

    def scalars(self, names):
        """Of those that are a number or a text what changed, and what has one of these names."""
        found = {name: value for name, value in _attributes(self.sampler).items() if type(value) in _SCALARS}
        return {name: value for name, value in found.items() if name in names or self._is_kept(name, value)}

    def set_scalars(self, scalars):
        for name, value in scalars.items():
            if self._takes(name):
                with contextlib.suppress(AttributeError):
                    setattr(self.sampler, name, value)

    def lacks(self, name):
        """Whether it is to have this attribute later."""
        return not _is_torchs(self.sampler) and self._takes(name) and _attributes(self.sampler).get(name) is None

    def take(self, name, value):
        """Whether it has the attribute now."""
        with contextlib.suppress(AttributeError):
            setattr(self.sampler, name, value)
            return True
        return False

    def unkept(self):
        """The names of those that are seen to have changed and are not kept."""
        opaques = [(name, value, self.before.get(name)) for name, value in _attributes(self.sampler).items()]
        names = [name for name, value, first in opaques if type(first) is opaque.Seen and first.has_changed(value, _digest, self.sampler)]
        of_class = {name: value for name, value in _defaults(self.sampler).items() if not _is_put_in_place(value)}
        return names + [name for name, value in of_class.items() if name in self.before and not self.before[name].is_of(value)]

    def _is_kept(self, name, value):
        # An epoch that somebody sets is no setting, also before it is set.
        if name == "epoch" and hasattr(self.sampler, "set_epoch"):
            return look(value) is not None
        first = self.before.get(name)
        if first is not None and first.is_of(value):
            return False
        if look(value) is not None:
            # Another one, or one that came since.
            return True
        if not opaque.is_generator(value):
            # Which are kept by themselves, and were not there at first.
            self.before[name] = opaque.seen(value, _digest, self.sampler)
        return False

    def _takes(self, name):
        """Whether it may have an attribute of this name: none of torch's that it has not, and no method."""
        if name in _attributes(self.sampler) or name in _defaults(self.sampler):
            return True
        there = getattr(type(self.sampler), name, None)
        is_free = there is None or isinstance(there, types.MemberDescriptorType)
        return is_free and not _is_torchs(self.sampler) and not (name.startswith("__") and name.endswith("__"))


def looks(sampler):
    """What `Held` has of it `before`."""
    found = {}
    for name, value in {**_defaults(sampler), **_attributes(sampler)}.items():
        found[name] = look(value) or opaque.seen(value, _digest, sampler)
        if name == _TURNED.get(type(sampler)):
            found[name].first = value
    return found


def _attributes(sampler):
    """Those that may be kept. Of torch's own samplers all else is a setting."""
    if _is_torchs(sampler):
        attributes = getattr(sampler, "__dict__", {})
        return {name: attributes[name] for name in ("epoch", _TURNED.get(type(sampler))) if name in attributes}
    return opaque.attributes(sampler)


def _defaults(sampler):
    """Plain data that a script's class has for a sampler which has none of that name itself."""
    if _is_torchs(sampler):
        return {}
    found = {}
    for kind in reversed(type(sampler).__mro__):
        if _root(kind) not in _NOT_OWN:
            found.update(kind.__dict__)
    own = opaque.attributes(sampler)
    return {name: value for name, value in found.items() if name not in own and not name.startswith("__") and _is_plain(value)}


def _is_plain(value):
    return type(value) in _SCALARS or type(value) in _CONTAINERS or _is_put_in_place(value)


def _is_put_in_place(value):
    return type(value) in (list, dict, torch.Tensor) or _is_array(value)


def _is_array(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def _is_torchs(sampler):
    return _root(type(sampler)) in ("torch", "stallscope")


def _root(kind):
    return kind.__module__.partition(".")[0]


class _Copy:
    """Lists of numbers and texts, and lists and dicts of lists, copied: to compare the same numbers again is to compare where they are, which takes some
    milliseconds for a million."""

    def __init__(self, value):
        self.kind, self.value = type(value), _copied(_in_order(value))

    def is_of(self, value):
        try:
            return type(value) is self.kind and bool(_in_order(value) == self.value)
        except Exception:
            # Of elements that cannot be compared, which these were not.
            return False


class _Digest:
    def __init__(self, digest):
        self.digest = digest

    def is_of(self, value):
        return _digest(value) == self.digest


def look(value):
    """What tells whether a value is another one; None of what is no plain data."""
    if type(value) in _CONTAINERS:
        if not _is_small(value):
            return None
        try:
            return _Copy(value)
        except TypeError:
            # Batches as ranges or arrays, say, and dicts within.
            pass
    digest = _digest(value)
    return None if digest is None else _Digest(digest)


def _digest(value):
    """Equal for equal content; None of what is no plain data."""
    kind = type(value)
    if kind in _SCALARS or kind is range:
        return kind.__name__, repr(value)
    if kind is torch.Tensor:
        plain = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
        return _of_array(_tensor_bytes(value), value.dtype, value.shape) if plain else None
    numpy = sys.modules.get("numpy")
    if _is_array(value):
        return None if value.dtype.hasobject else _of_array(numpy.ascontiguousarray(value).tobytes(), value.dtype, value.shape)
    if numpy is not None and isinstance(value, numpy.generic):
        return None if value.dtype.hasobject else _of_array(value.tobytes(), value.dtype, ())
    return _of_container(value) if kind in _CONTAINERS and _is_small(value) else None


def _of_container(value):
    kind = type(value)
    try:
        # Of an older version: newer ones tell how often an object is referred to, too.
        return kind.__name__, zlib.crc32(marshal.dumps(value, 2))
    except ValueError:
        parts = [_digest(one) for one in (itertools.chain(*value.items()) if kind is dict else value)]
        return None if None in parts or kind in (set, frozenset) else (kind.__name__, zlib.crc32(repr(parts).encode()))


def _in_order(value):
    """Two dicts are equal in another order, too."""
    return [list(value), list(value.values())] if type(value) is dict else value


def _copied(value):
    """TypeError where it has what is neither a list, tuple or set nor a number or text."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind not in _CONTAINERS or kind is dict:
        raise TypeError
    return kind(value) if _SCALARS.issuperset(map(type, value)) else kind(map(_copied, value))


def _tensor_bytes(tensor):
    content = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach().resolve_neg()
    return content.contiguous().reshape(-1).view(torch.uint8).numpy()


def _of_array(content, dtype, shape):
    return str(dtype), tuple(shape), zlib.crc32(content)


def _is_small(container):
    """Whether it and what it holds may be looked at."""
    count, level = len(container), [container]
    for _ in range(_DEEPEST):
        if not level or count > _MOST_ELEMENTS:
            break
        level = [one for outer in level for one in _containers(outer.values() if type(outer) is dict else outer)]
        count += sum(map(len, level))
    return not level and count <= _MOST_ELEMENTS


def _containers(values):
    return () if _CONTAINERS.isdisjoint(map(type, values)) else [one for one in values if type(one) in _CONTAINERS]


def packed(value):
    """A copy: numbers and texts as they are, and all else in a dict that says what it is, with numbers of samples in tensors."""
    kind = type(value)
    if kind is torch.Tensor:
        return {"tensor": value.detach().clone()}
    if kind.__module__ == "numpy":
        return {"array": value.copy()}
    if kind is list:
        numbers = _numbers(value)
        if numbers is not None:
            return {"numbers": numbers}
        if value and set(map(type, value)) == {list}:
            numbers = _numbers(list(itertools.chain.from_iterable(value)))
            if numbers is not None:
                return {"rows": numbers, "lengths": torch.tensor(list(map(len, value)))}
        return {"list": [packed(one) for one in value]}
    if kind is tuple:
        return {"tuple": [packed(one) for one in value]}
    if kind is dict:
        return {"keys": [packed(one) for one in value], "values": [packed(one) for one in value.values()]}
    if kind in (set, frozenset):
        return {"value": kind(value)}
    return {"value": value} if kind is range else value


def _numbers(values):
    """As a tensor; None unless they are some whole numbers of 64 bits."""
    if len(values) <= 8 or set(map(type, values)) != {int}:
        return None
    try:
        return torch.frombuffer(array("q", values), dtype=torch.int64)
    except OverflowError:
        return None


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
        return dict(zip(distinguishable(map(unpacked, value)), map(unpacked, more[0][1])))
    whole = [unpacked(one) for one in value]
    return tuple(whole) if kind == "tuple" else whole


def _put(sampler, name, value):
    """In place where it can be: other objects may have the same list or array."""
    there = getattr(sampler, name, None)
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
