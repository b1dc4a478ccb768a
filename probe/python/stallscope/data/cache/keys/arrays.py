"""What arrays and tensors hold: by their content, or where that lies in a file, by the place there."""

import mmap
import os
import sys

import torch

from .plain import is_a

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
# Whatever a subclass makes of torch's functions. Older ones call it otherwise.
_Plain = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction


def tell(walk, value):
    """Whether it was an array, a tensor or a number of numpy's, and was digested."""
    if is_a(value, torch.Tensor):
        _tensor(walk, value)
        return True
    numpy = sys.modules.get("numpy")
    if numpy is None or not is_a(value, numpy.ndarray):
        return False
    _array(walk, numpy, value)
    return True


def stand_in(walk, value, sampled):
    """What shows that a bulky content is another one, without reading all of it: which object it is, where its bytes lie, their
    version, and some of them."""
    numpy = sys.modules.get("numpy")
    if is_a(value, torch.Tensor):
        walk.hold(value)
        with _Plain():
            walk.emit(value._version if not value.is_inference() else None, tuple(value.shape), str(value.dtype))
        if type(value) in _PLAIN_TENSORS and _is_dense(value):
            walk.emit(value.data_ptr() if walk.owner is None else None, value.stride())
            if value.numel() and value.is_contiguous():
                flat = value.detach().reshape(-1)
                some = flat[:: max(1, len(flat) // sampled)]
                walk.emit(some.resolve_conj().resolve_neg().contiguous().view(torch.uint8).numpy().tobytes())
    elif numpy is not None and is_a(value, numpy.ndarray):
        walk.hold(value)
        walk.emit(value.__array_interface__["data"] if walk.owner is None else None)
        walk.emit(value.shape, value.strides, value.dtype.str)
        if value.size and value.flags.c_contiguous and not value.dtype.hasobject:
            flat = numpy.ndarray.view(value, numpy.ndarray).reshape(-1)
            walk.emit(flat[:: max(1, len(flat) // sampled)].tobytes())
    elif isinstance(value, (list, tuple, str, bytes, bytearray)):
        for one in value[:: max(1, len(value) // sampled)]:
            if isinstance(one, (int, float, str)) and (not isinstance(one, str) or len(one) < 1000):
                walk.emit(type(one).__name__, one)
            elif walk.owner is None:
                walk.emit(id(one))


def _is_dense(value):
    with _Plain():
        return value.device.type == "cpu" and value.layout is torch.strided and not value.is_quantized


def _tensor(walk, value):
    if not _is_dense(value):
        walk.cannot(value, "it holds a tensor that is not plain memory")
        return stand_in(walk, value, 0)
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return walk.cannot(value, f"it holds a {type(value).__name__}")
    with _Plain():
        plain = value.detach()
        if type(value) not in _PLAIN_TENSORS:
            plain = plain.as_subclass(torch.Tensor)
        about = "tensor", str(plain.dtype), tuple(plain.shape), value.requires_grad
        gradient = value.grad if value.is_leaf else None

    def write(take):
        if plain.numel():
            resolved = plain.resolve_conj().resolve_neg().contiguous()
            take(memoryview(resolved.reshape(-1).view(torch.uint8).numpy()))

    walk.bulk(value, write, plain.numel() * plain.element_size(), *about)
    walk.value(gradient)


def _array(walk, numpy, value):
    about = "array", _named(value.dtype), value.shape, value.flags.fnc
    if value.dtype.hasobject:
        walk.emit(*about)
        if walk.glances_over(value.size):
            return stand_in(walk, value, 0)
        return walk.on_behalf(value, [numpy.ndarray.tolist(value)])
    place = _place_in_file(numpy, value)
    if place is not None:
        return walk.emit("mapped", *about, value.strides, place)
    plain = numpy.ndarray.view(value, numpy.ndarray)

    def write(take):
        if plain.size:
            take(memoryview(numpy.ascontiguousarray(plain).reshape(-1).view(numpy.uint8)))

    walk.bulk(value, write, plain.nbytes, *about)


def _named(dtype):
    return dtype.str if dtype.names is None else repr(dtype.descr) + repr(dtype.fields)


def _place_in_file(numpy, value):
    """Where in a file the array's bytes lie; None if they don't, or if they may be changed in memory."""
    mapped = value
    while mapped is not None and not isinstance(mapped, numpy.memmap):
        mapped = mapped.base if isinstance(mapped.base, numpy.ndarray) else None
    if mapped is None or getattr(mapped, "_mmap", None) is None or mapped.filename is None or mapped.mode != "r":
        return None
    # A slice bears the offset of what it was cut from.
    began = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    origin = numpy.frombuffer(mapped._mmap, dtype=numpy.uint8).__array_interface__["data"][0]
    described = os.stat(mapped.filename)
    where = began + value.__array_interface__["data"][0] - origin
    return os.fspath(mapped.filename), where, described.st_size, described.st_mtime_ns, described.st_ino
