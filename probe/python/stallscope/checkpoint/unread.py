"""Tensors of a checkpoint that are read where somebody copies them to, so that a state is never in memory a second time."""

import copy

import torch
from torch.utils._pytree import tree_map

from .dtensors import box_of, empty, is_dtensor, local_of

_without_subclasses = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction
# None in torch before 2.1.
_changed = getattr(torch.autograd.graph, "increment_version", None)

_ATTRIBUTES = ("device", "dtype", "is_leaf", "is_meta", "is_sparse", "layout", "ndim", "requires_grad", "shape")
_METHODS = ("dim", "element_size", "is_complex", "is_contiguous", "is_floating_point", "numel", "size", "stride", "to")
# What is known of a tensor without its elements. `to` gives another one that is unread, or the same.
_ABOUT = {getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES} | {getattr(torch.Tensor, name) for name in _METHODS}


class Unread(torch.Tensor):
    """A tensor without memory. `target.copy_(it)` reads it into the target, straight where that is dense and of its type;
    whatever else wants its elements has it read into memory of its own.

    `source`: the reading.Stored that it is read from.
    """

    @staticmethod
    def __new__(cls, source, shape, stride=None, dtype=None, device="cpu"):
        return torch.Tensor._make_wrapper_subclass(cls, shape, strides=stride, dtype=dtype or source.dtype, device=device)

    def __init__(self, source, shape, stride=None, dtype=None, device="cpu"):
        self._source = source
        self._value = None

    def strided(self, stride):
        """The same, to be laid out so in memory of its own."""
        return Unread(self._source, self.shape, stride)

    def fill(self, target):
        """Reads it into `target`, which has its shape; of a DTensor what this rank has of it."""
        fill([(self, target)])

    def value(self):
        """As a tensor of its own, the same each time."""
        if self._value is None:
            value = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device)
            self.fill(value)
            self._value = value
        return self._value

    def placed(self, like, name):
        """Empty memory for it: on the mesh of `like` where that is a DTensor and this was one, or has its shape."""
        saved = self._source.saved
        if is_dtensor(like) and (saved is not None or like.shape == self.shape):
            return empty(saved, self.shape, like, name, self.dtype)
        return torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device)

    def __deepcopy__(self, memo):
        return copy.deepcopy(self.value(), memo)

    def __reduce_ex__(self, protocol):
        return self.value().__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.copy_ and len(args) > 1 and _is_to_be_filled(*args[:2]):
            args[1].fill(args[0])
            return args[0]
        if func not in _ABOUT:
            args, kwargs = _read((args, kwargs))
        with _without_subclasses():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and set(kwargs) <= {"dtype", "device", "non_blocking"}:
            it = args[0]
            if it._value is None:
                return Unread(it._source, it.shape, it.stride(), kwargs.get("dtype") or it.dtype, kwargs.get("device") or it.device)
        args, kwargs = _read((args, kwargs))
        return func(*args, **kwargs)


def fill(pairs):
    """Reads each of the unread tensors into the tensor beside it, which has its shape: what can be read straight there, together."""
    reads = {}
    for it, target in pairs:
        if it._value is not None and not is_dtensor(target):
            # Somebody had it read, and may have changed it since.
            target.copy_(it._value)
            continue
        source, offset = it._source, None
        if is_dtensor(target):
            offset, target = box_of(target).offset, local_of(target)
        if target.numel() == 0:
            continue
        if _is_plain(target) and target.dtype == source.dtype:
            for rank, place in source.places(target, offset):
                together = reads.setdefault((source.reading, rank), {})
                if place[0] in together:
                    # Tied: saved once, and read for each of them.
                    source.reading.read(rank, [place])
                else:
                    together[place[0]] = place
            if _changed is not None:
                _changed(target)
        else:
            # Whatever torch.set_default_device() says.
            read = torch.empty(target.shape, dtype=source.dtype, device="cpu")
            for rank, place in source.places(read, offset):
                source.reading.read(rank, [place])
            target.copy_(read)
    for (reading, rank), places in reads.items():
        reading.read(rank, list(places.values()))


def _read(values):
    return tree_map(lambda one: one.value() if isinstance(one, Unread) else one, values)


def _is_to_be_filled(target, source):
    """Whether copying needs no more than to read. Torch says what is wrong with any other."""
    return (
        isinstance(source, Unread)
        and source._value is None
        and not isinstance(target, Unread)
        and target.shape == source.shape
        and not (torch.is_grad_enabled() and target.requires_grad)
    )


def _is_plain(tensor):
    """Whether its elements lie on the CPU, densely and row by row."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
