"""States of models, optimisers and whatever else, as tensors apart and JSON.

What is read back is plain data. Nothing is unpickled but where the user trusts the checkpoint: what torch holds harmless
(`torch.load(weights_only=True)`) may still name sizes that it does not have, and share what it holds with itself without end.
"""

import base64
import collections
import io
import json

import torch

from stallscope._hooks.knobs import raised_by_signal
from stallscope._keys import distinguishable

from . import dtensors, kinds, special
from .depth import too_deep
from .errors import CheckpointError
from .unread import Unread

# torch's types by their names in safetensors files.
DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
    "C64": "complex64",
}
DTYPES = {name: getattr(torch, torch_name) for name, torch_name in DTYPES.items() if hasattr(torch, torch_name)}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# What lazy modules have before their first batch.
_LAZY = {"parameter": torch.nn.parameter.UninitializedParameter, "buffer": torch.nn.parameter.UninitializedBuffer}
# Longer ints are written in hexadecimal: Python refuses to write one of more than some thousand decimal digits.
_JSON_BITS = 8192
# Sparse tensors may share their indices. How often all that is stored may be used on average.
_MOST_USES = 16
# Of a state's JSON: some ten lists and dicts for each parameter that is trained. They take memory and time beyond their text.
_MOST_CONTAINERS, _MOST_VALUES = 1 << 22, 1 << 24
# Each takes a kilobyte.
_MOST_LAZY = 1 << 16
# A dict in the JSON has one key, which says what it stands for.
_PLAIN = (type(None), bool, int, float, str)


class Writer:
    """Takes trees apart: `tensors` holds what `encode` met, by name; of DTensors this rank's part, which `shards` describes."""

    def __init__(self):
        self.tensors = {}
        # As JSON by name, and the meshes that they name by number.
        self.shards = {}
        self.meshes = []
        self.dtensors = {}
        # By a mesh's id(); its tensors hold it for as long as this lives.
        self._meshes = {}
        # Name -> type of what comes back for those alone who trust the checkpoint.
        self.untrusted = {}
        self._seen = {}
        self._spare = kinds.Spare()
        self._lazy = 0

    def encode(self, value, name):
        """`value` as JSON; its tensors are called `name/…`. CheckpointError where it cannot be."""
        try:
            return self._encode(value, name)
        except RecursionError:
            pass
        raise CheckpointError(too_deep(value, name))

    def _encode(self, value, name):
        if isinstance(value, Unread):
            # Of a restore, where a class of the script's own keeps it.
            value = value.value()
        kind = type(value)
        if kind is int and value.bit_length() > _JSON_BITS:
            return {"int": hex(value)}
        if kind in _PLAIN:
            return value
        if kind is list:
            return [self._encode(one, f"{name}/{at}") for at, one in enumerate(value)]
        if kind is tuple:
            return {"tuple": [self._encode(one, f"{name}/{at}") for at, one in enumerate(value)]}
        if kind is dict:
            if all(type(key) is str for key in value):
                return {"dict": {key: self._encode(one, f"{name}/{key}") for key, one in value.items()}}
            return {"pairs": self._pairs(value, name)}
        if kind is collections.OrderedDict:
            encoded = {"ordered": self._pairs(value, name)}
            metadata = getattr(value, "_metadata", None)
            # What modules say of the version of their state.
            return {"module": [encoded, self._encode(metadata, name)]} if metadata is not None else encoded
        if kind in (torch.Tensor, torch.nn.Parameter) and _is_simple(value):
            return _as_it_trains(self._tensor(value.detach(), name), value)
        if dtensors.is_dtensor(value):
            return _as_it_trains(self._dtensor(value.detach(), name), value)
        refuse_distributed(value, name)
        if kind in (torch.Tensor, torch.nn.Parameter):
            made = special.encode(value.detach(), lambda one, below: self._encode(one, f"{name}/{below}"))
            if made is not None:
                return _as_it_trains(made, value)
        if kind in _LAZY.values():
            self._lazy = _one_more_lazy(self._lazy)
            return {"lazy": next(name for name, one in _LAZY.items() if one is kind)}
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if kind is torch.Size:
            return {"size": list(value)}
        if kind is torch.dtype:
            return {"dtype": str(value).partition(".")[2]}
        if kind is torch.device:
            return {"device": str(value)}
        if kind in (set, frozenset):
            return {"set": [self._encode(one, name) for one in value], "frozen": kind is frozenset}
        for form in (self._numpy(value, name), kinds.encode(value, lambda one, below: self._encode(one, f"{name}/{below}"), self._spare)):
            if form is not None:
                return form
        self.untrusted[name] = kind
        return {"pickle": _pickled(value, name)}

    def _pairs(self, value, name):
        return [[self._encode(key, name), self._encode(one, f"{name}/{key}")] for key, one in value.items()]

    def _tensor(self, tensor, name):
        if tensor.numel() and tensor.device.type == "cpu" and not tensor.data_ptr():
            raise CheckpointError(f"{name} has no memory, as its storage was given back (resize_(0)): give it its memory before a save, or leave it out")
        same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        if tensor.numel() and same in self._seen:
            # Tied weights are saved once.
            return {"tensor": self._seen[same]}
        unique = self._unique(name)
        self.tensors[unique] = tensor
        self._seen[same] = unique
        encoded = {"tensor": unique}
        if not tensor.is_contiguous() and _is_dense(tensor):
            encoded["stride"] = list(tensor.stride())
        return encoded

    def _unique(self, name):
        # A key of the user's may be no text that a file can have.
        name = name.encode("utf-8", "backslashreplace").decode()
        unique, number = name, 1
        while unique in self.tensors or unique in self.shards:
            number += 1
            unique = f"{name}#{number}"
        return unique

    def _dtensor(self, value, name):
        dtensors.refuse_unknown(value, name)
        local = dtensors.local_of(value)
        if type(local) not in (torch.Tensor, torch.nn.Parameter) or not _is_simple(local):
            raise CheckpointError(f"{name} is a DTensor of {local.dtype} that is more than its elements: save with torch.distributed.checkpoint")
        same = (dtensors.memory_of(local), local.dtype, value.shape, local.stride(), local.device)
        if same in self._seen:
            return {"dtensor": self._seen[same]}
        unique = self._seen[same] = self._unique(name)
        box, mesh = dtensors.box_of(value), value.device_mesh
        if id(mesh) not in self._meshes:
            self._meshes[id(mesh)] = len(self.meshes)
            self.meshes.append(dtensors.described(mesh))
        # Of several ranks that hold the same one saves it.
        saved = local.numel() > 0 and dtensors.is_first(value)
        self.shards[unique] = {
            "dtype": _NAMES[local.dtype],
            "shape": list(value.shape),
            "offset": list(box.offset),
            "sizes": list(box.sizes),
            "dims": list(dtensors.dims_of(value)),
            "mesh": self._meshes[id(mesh)],
            "saved": saved,
        }
        self.dtensors[unique] = value
        if saved:
            self.tensors[unique] = local
        return {"dtensor": unique}

    def _numpy(self, value, name):
        if type(value).__module__ != "numpy":
            return None
        import numpy

        if type(value) is numpy.ndarray and value.dtype.kind in "biufc":
            try:
                # A copy in the same order of memory: as it is, it may be read-only, or have gaps.
                tensor = torch.from_numpy(numpy.array(value, order="K"))
            except (TypeError, ValueError):
                # A type that torch does not have, or the other byte order.
                return None
            return {"numpy": self._tensor(tensor, name)} if tensor.dtype in _NAMES else None
        if isinstance(value, (numpy.number, numpy.bool_)):
            return {"scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
        return None


def _as_it_trains(encoded, value):
    """With whether it wants a gradient, and is a parameter."""
    is_parameter = isinstance(value, torch.nn.Parameter)
    return {**encoded, "trains": value.requires_grad, "parameter": is_parameter} if is_parameter or value.requires_grad else encoded


class Reader:
    """Puts trees together again from the tensors by name. `unread`: those that were not read yet may stay so. `likes`: dtensors.Likes, where
    DTensors come back as such."""

    def __init__(self, tensors, trust, unread=False, likes=None):
        self.tensors = tensors
        self.trust = trust
        self.unread = unread
        self.likes = likes
        # DTensors that were read, by name: one that stands in several places is one again.
        self._placed = {}
        # Those that train, as objects: one that stands in several places is one again.
        self._training = {}
        # Those that lie in memory in an order of their own, by name: their strides, and they in that order.
        self._strided = {}
        # Those that are made of others, by their JSON, and how many bytes of others may still be looked at for that.
        self._made = {}
        self._uses_left = None
        # Where tensors may stay unread: the one for what is made of them.
        self._whole = None
        self._spare = kinds.Spare()
        self._lazy = 0

    def decode(self, encoded):
        """The value that was encoded; CheckpointError."""
        try:
            return self._decode(encoded)
        except CheckpointError:
            raise
        except Exception as error:
            # It may come from a class of the user's, or from a signal's handler.
            if self.trust or raised_by_signal(error):
                raise
            what = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise CheckpointError(f"the checkpoint's state is none that stallscope saves ({what})") from error

    def _decode(self, encoded):
        if type(encoded) is list:
            return [self._decode(one) for one in encoded]
        if type(encoded) is not dict:
            return encoded
        if not encoded:
            raise CheckpointError("the checkpoint's state has a value of no kind")
        kind, body = next(iter(encoded.items()))
        if kind == "tensor":
            tensor = self._tensor(body, encoded.get("stride"))
            return tensor if "trains" not in encoded else self._trained(tensor, body, encoded)
        if kind == "int":
            return int(body, 16)
        if kind == "lazy":
            self._lazy = _one_more_lazy(self._lazy)
            return _LAZY[body]()
        if kind == "dtensor":
            tensor = self._dtensor(body)
            return tensor if "trains" not in encoded else self._trained(tensor, body, encoded)
        if kind == "dict":
            return {key: self._decode(one) for key, one in body.items()}
        if kind == "pairs":
            return dict(self._pairs(body))
        if kind == "ordered":
            return collections.OrderedDict(self._pairs(body))
        if kind == "module":
            state, metadata = map(self._decode, body)
            state._metadata = metadata
            return state
        if kind == "tuple":
            return tuple(self._decode(one) for one in body)
        if self.unread:
            # What is made of tensors needs their elements. One reads all such: what is named often is made once.
            self._whole = self._whole or Reader(self.tensors, self.trust, likes=self.likes)
            return self._whole._decode(encoded)
        if kind == "bytes":
            return base64.b64decode(body)
        if kind == "size":
            return torch.Size(body)
        if kind == "dtype" and isinstance(getattr(torch, body, None), torch.dtype):
            return getattr(torch, body)
        if kind == "device":
            return torch.device(body)
        if kind == "set":
            return (frozenset if encoded.get("frozen") else set)(distinguishable(self._decode(one) for one in body))
        if kind == "special":
            made = self._special(body)
            return made if "trains" not in encoded else self._trained(made, json.dumps(body), encoded)
        if kind == "numpy":
            return self._decode(body).numpy()
        if kind == "scalar":
            import numpy

            return numpy.frombuffer(base64.b64decode(body[1]), dtype=numpy.dtype(body[0]))[0]
        if kind == "pickle":
            return _unpickled(base64.b64decode(body), self.trust)
        try:
            return kinds.decode(kind, body, self._part if kind == "generator" else self._decode, self._spare)
        except KeyError:
            raise CheckpointError(f"the checkpoint holds a {kind!r}, which this version of stallscope does not know") from None

    def _pairs(self, body):
        decoded = [(self._decode(key), self._decode(one)) for key, one in body]
        distinguishable(key for key, _ in decoded)
        return decoded

    def _special(self, body):
        key = json.dumps(body)
        if key not in self._made:
            self._made[key] = special.decode(body, self._part)
        return self._made[key]

    def _part(self, encoded):
        """Of a tensor that is made of several. Some of them may be made of the same, and few bytes may say so again and again."""
        part = self._decode(encoded)
        if self._uses_left is None:
            self._uses_left = _MOST_USES * sum(one.numel() * one.element_size() for one in self.tensors.values())
        if type(part) is torch.Tensor:
            self._uses_left -= part.numel() * part.element_size()
        if self._uses_left < 0:
            raise CheckpointError("the checkpoint makes more tensors of those that it has than stallscope saves: another program made it")
        return part

    def _dtensor(self, name):
        tensor = self.tensors.get(name)
        like = None if self.unread or tensor is None or self.likes is None else self.likes.of(name, tensor.shape)
        if like is None:
            return self._tensor(name, None)
        if name not in self._placed:
            target = tensor.placed(like, name)
            tensor.fill(target)
            self._placed[name] = target
        return self._placed[name]

    def _trained(self, tensor, name, encoded):
        trains, is_parameter = encoded["trains"] is True, encoded.get("parameter") is True
        if (name, trains, is_parameter) not in self._training:
            # Not itself, which may stand elsewhere without a gradient.
            alone = (tensor.value() if isinstance(tensor, Unread) else tensor).detach()
            alone = torch.nn.Parameter(alone, trains) if is_parameter else alone.requires_grad_(trains)
            self._training[name, trains, is_parameter] = alone
        return self._training[name, trains, is_parameter]

    def _tensor(self, name, stride):
        if name not in self.tensors:
            raise CheckpointError(f"the checkpoint names a tensor {name!r} that it does not have")
        tensor = self.tensors[name]
        if isinstance(tensor, Unread) and not self.unread:
            tensor = tensor.value()
        if stride is None:
            # Tied ones share no memory here: loading copies them.
            return tensor
        # It lies in one order: a few bytes that name it in each of many would take its size for each.
        if name not in self._strided:
            self._strided[name] = stride, self._in_order(tensor, name, stride)
        its_stride, strided = self._strided[name]
        if stride != its_stride:
            raise CheckpointError(f"the checkpoint's tensor {name!r} lies in memory in two orders: another program made it")
        return strided

    def _in_order(self, tensor, name, stride):
        if len(stride) != tensor.dim() or not _fills_memory(tensor.shape, stride):
            raise CheckpointError(f"the checkpoint's tensor {name!r} of shape {list(tensor.shape)} cannot lie in memory as it says")
        if isinstance(tensor, Unread):
            return tensor.strided(stride)
        return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device="cpu").copy_(tensor)


def refuse_distributed(value, name):
    """CheckpointError where `value` is a tensor of several ranks and no DTensor: pickled, it would come back as one rank's part for all."""
    kind = type(value)
    if isinstance(value, torch.Tensor) and kind.__module__.startswith("torch.distributed"):
        raise CheckpointError(
            f"{name} is a {kind.__name__}, of which each rank holds a part: pass sharded=True and an object whose "
            "state_dict() gives this rank's own tensors, or use DTensors (fully_shard() in the place of FullyShardedDataParallel), or save with "
            "torch.distributed.checkpoint"
        )


def dtype_name(dtype):
    """safetensors' name of a torch type."""
    return _NAMES[dtype]


def to_bytes(encoded):
    data = json.dumps(encoded, separators=(",", ":")).encode()
    _demand_bounded(data, "the state to be saved")
    return data


def from_bytes(data):
    """What to_bytes() was given."""
    _demand_bounded(data, "the checkpoint's state")
    try:
        if b"\0" in data:
            # A hole in the file takes no disk, and would be copied.
            raise ValueError
        # All of it is ASCII: a single other character could take four bytes for each.
        return json.loads(data.decode("ascii"))
    except (ValueError, RecursionError):
        raise CheckpointError("the checkpoint's state is no JSON: another program made it") from None


def _one_more_lazy(count):
    if count == _MOST_LAZY:
        raise CheckpointError(f"a state has at most {_MOST_LAZY:,} parameters without a shape: run a batch through the model first")
    return count + 1


def _demand_bounded(data, whose):
    """CheckpointError where JSON has more values than any state. Those that texts only look like count too."""
    containers = data.count(b"[") + data.count(b"{")
    values = data.count(b",") + containers
    if containers > _MOST_CONTAINERS or values > _MOST_VALUES:
        raise CheckpointError(
            f"{whose} has {containers:,} lists and dicts and {values:,} values in all, and one has at most {_MOST_CONTAINERS:,} and "
            f"{_MOST_VALUES:,}: keep long lists of numbers as tensors or numpy arrays"
        )


def _is_simple(tensor):
    """Whether its elements are all there is to it."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.dtype in _NAMES
        and not tensor.is_quantized
        and not tensor.is_meta
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _is_dense(tensor):
    """Whether its elements fill its memory, in whatever order."""
    return _fills_memory(tensor.shape, tensor.stride())


def _fills_memory(shape, strides):
    expected = 1
    for stride, size in sorted(zip(strides, shape)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _pickled(value, name):
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception as error:
        if raised_by_signal(error):
            raise
        raise CheckpointError(
            f"{name} cannot be saved: {type(error).__name__}: {error}; leave it out of the state, or give its class a state_dict()"
        ) from error
    return base64.b64encode(buffer.getvalue()).decode()


def _unpickled(data, trust):
    if not trust:
        raise CheckpointError("the checkpoint holds objects that could run code when they are loaded; if you trust it, pass trust=True")
    return torch.load(io.BytesIO(data), weights_only=False)
