"""Decoded samples as bytes, and back: versioned, self-describing, checked as a whole, and nothing in them is run.

    magic | version | 0 | crc32 of all that follows | bytes of the description | bytes in all | description | buffers

The description is JSON: whole numbers, strings, true, false and null stand for themselves, everything else is a list
that begins with its kind. The bytes of arrays, tensors and strings of bytes follow in the order in which they are
described, each at a multiple of 64 bytes.
"""

import ctypes
import json
import math
import re
import struct
import sys
import zlib

import torch

VERSION = 1
_MAGIC = b"SSdc"
_HEAD = struct.Struct("<4sHHI")
_SIZES = struct.Struct("<IQ")
_BEGIN = _HEAD.size + _SIZES.size
_ALIGNED = 64
# More parts than these take longer in Python than what is saved.
_MOST_NODES, _NESTING, _MOST_AXES = 4096, 16, 32
_NUMPY = re.compile(r"[<>|]([biu][1248]|f[248]|c8|c16)")
_TORCH = frozenset(
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 "
    "complex128".split()
)
_LEAVES = (type(None), bool, int, str)
_INTS = (-(2**63), 2**64)


class Unpackable(Exception):
    """A sentence, without its end, that says why something cannot be kept."""


class Broken(Exception):
    """These bytes are no sample."""


def pack(sample):
    """The bytes of `sample`; Unpackable."""
    packing = _Packing()
    described = json.dumps(packing.node(sample, _NESTING), separators=(",", ":")).encode()
    pieces, size = [described], _BEGIN + len(described)
    for count, buffer in packing.buffers:
        gap = -size % _ALIGNED
        pieces += [bytes(gap), buffer]
        size += gap + count
    sizes = _SIZES.pack(len(described), size)
    check = zlib.crc32(sizes)
    for piece in pieces:
        check = zlib.crc32(piece, check)
    return b"".join([_HEAD.pack(_MAGIC, VERSION, 0, check), sizes, *pieces])


def unpack(data):
    """The sample of these bytes, a bytearray, which it keeps for itself and may write to; Broken."""
    try:
        return _Unpacking(data).sample()
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}") from None


class _Packing:
    def __init__(self):
        # Pairs of bytes and what has so many.
        self.buffers = []
        self.nodes = 0
        self.seen = set()
        self.taken = []

    def node(self, value, nesting):
        self.nodes += 1
        if nesting == 0 or self.nodes > _MOST_NODES:
            raise Unpackable("it has too many parts")
        kind = type(value)
        if kind is int and not _INTS[0] <= value < _INTS[1]:
            raise Unpackable("it has a number of more than 64 bits")
        if kind in _LEAVES:
            return value
        if kind is float:
            return ["float", *struct.unpack("<q", struct.pack("<d", value))]
        if kind in (list, dict, bytearray):
            # What changes with one of two must not be two afterwards.
            if id(value) in self.seen:
                raise Unpackable(f"it has the same {kind.__name__} twice")
            self.seen.add(id(value))
        if kind in (list, tuple):
            return [kind.__name__, [self.node(one, nesting - 1) for one in value]]
        if kind is dict:
            return ["dict", [[self._key(key, nesting), self.node(one, nesting - 1)] for key, one in value.items()]]
        if kind in (bytes, bytearray):
            if kind is bytearray and value:
                self._once(ctypes.addressof(ctypes.c_char.from_buffer(value)), len(value))
            return [kind.__name__, self._buffer(len(value), value)]
        if kind is torch.Tensor:
            return self._tensor(value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and kind is numpy.ndarray:
            return self._array(value)
        if numpy is not None and isinstance(value, numpy.generic) and kind is value.dtype.type:
            data = value.tobytes()
            self._buffer(len(data), data)
            return ["scalar", _dtype_of(value)]
        raise Unpackable(f"it has a {kind.__module__}.{kind.__qualname__}")

    def _key(self, key, nesting):
        if type(key) not in (*_LEAVES, float, bytes):
            raise Unpackable(f"it has a dict with a {type(key).__name__} for a key")
        return self.node(key, nesting - 1)

    def _array(self, array):
        dtype, axes = _dtype_of(array), _axes(array.shape, array.strides, array.itemsize)
        if array.nbytes:
            self._once(array.__array_interface__["data"][0], array.nbytes)
        self._buffer(array.nbytes, array.transpose(axes).reshape(-1).view("u1"))
        return ["numpy", dtype, list(array.shape), axes]

    def _tensor(self, tensor):
        dtype = str(tensor.dtype).split(".")[-1]
        plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and dtype in _TORCH
        more = tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or any(getattr(tensor, "names", ()))
        if not plain or more or vars(tensor):
            raise Unpackable("it has a tensor that is more than plain numbers in the CPU's memory")
        axes = _axes(tuple(tensor.shape), tensor.stride(), 1)
        flat = tensor.permute(axes).reshape(-1)
        count = flat.numel() * flat.element_size()
        if count:
            self._once(flat.data_ptr(), count)
        self._buffer(count, _Memory(flat, count).bytes if count else b"")
        return ["torch", dtype, list(tensor.shape), axes]

    def _buffer(self, count, buffer):
        self.buffers.append((count, buffer))
        return count

    def _once(self, address, count):
        end = address + count
        if any(address < other_end and other < end for other, other_end in self.taken):
            raise Unpackable("it has two parts that share memory")
        self.taken.append((address, end))


class _Memory:
    """A tensor's memory, with or without numpy; the tensor stays as long as it is looked at."""

    def __init__(self, flat, count):
        self.bytes = (ctypes.c_char * count).from_address(flat.data_ptr())
        self.bytes.of = flat


def _dtype_of(value):
    if _NUMPY.fullmatch(value.dtype.str) is None:
        raise Unpackable(f"it has an array of {value.dtype}")
    return value.dtype.str


def _axes(shape, strides, unit):
    """The axes in the order in which the bytes lie, outermost first: sums depend on it in their last bits."""
    if 0 in shape:
        return list(range(len(shape)))
    axes = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
    for axis in reversed(axes):
        if shape[axis] != 1 and strides[axis] != unit:
            raise Unpackable("it has an array whose bytes lie with gaps")
        unit *= shape[axis]
    return axes


class _Unpacking:
    def __init__(self, data):
        self.data = data
        self.nodes = 0

    def sample(self):
        data = self.data
        if len(data) < _BEGIN:
            raise Broken("too short")
        magic, version, zero, check = _HEAD.unpack_from(data)
        described, size = _SIZES.unpack_from(data, _HEAD.size)
        if (magic, version, zero, size) != (_MAGIC, VERSION, 0, len(data)) or described > size - _BEGIN:
            raise Broken("another form")
        with memoryview(data) as view, view[_HEAD.size :] as checked:
            if zlib.crc32(checked) != check:
                raise Broken("another checksum")
        self.at = _BEGIN + described
        node = json.loads(bytes(data[_BEGIN : self.at]), parse_float=_broken, parse_constant=_broken)
        sample = self._made(node, _NESTING)
        if self.at != size:
            raise Broken("more bytes than are described")
        return sample

    def _made(self, node, nesting):
        self.nodes += 1
        if nesting == 0 or self.nodes > _MOST_NODES:
            raise Broken("too many parts")
        if type(node) in _LEAVES:
            return node
        kind, *fields = node if type(node) is list and node else _broken(node)
        if kind == "float":
            (bits,) = fields
            return struct.unpack("<d", struct.pack("<q", bits))[0]
        if kind in ("list", "tuple"):
            made = [self._made(one, nesting - 1) for one in _a_list(*fields)]
            return made if kind == "list" else tuple(made)
        if kind == "dict":
            made = {}
            for key, one in _a_list(*fields):
                key = self._made(key, nesting - 1)
                if type(key) not in (*_LEAVES, float, bytes):
                    raise Broken("no key")
                made[key] = self._made(one, nesting - 1)
            return made if len(made) == len(fields[0]) else _broken(kind)
        if kind in ("bytes", "bytearray"):
            (count,) = fields
            begin = self._next(count)
            made = self.data[begin : begin + count]
            return bytes(made) if kind == "bytes" else made
        if kind == "numpy":
            return self._array(*fields)
        if kind == "scalar":
            return self._array(*fields, [1], [0])[0]
        if kind == "torch":
            return self._tensor(*fields)
        raise Broken("an unknown kind")

    def _array(self, dtype, shape, axes):
        import numpy

        dtype = numpy.dtype(dtype) if _NUMPY.fullmatch(dtype) else _broken(dtype)
        count, begin = self._counted(shape, axes, dtype.itemsize)
        flat = numpy.frombuffer(self.data, dtype, count, begin) if count else numpy.empty(0, dtype)
        return flat.reshape([shape[axis] for axis in axes]).transpose(_inverse(axes))

    def _tensor(self, dtype, shape, axes):
        dtype = getattr(torch, dtype) if dtype in _TORCH else _broken(dtype)
        itemsize = torch.empty((), dtype=dtype, device="cpu").element_size()
        count, begin = self._counted(shape, axes, itemsize)
        if count:
            flat = torch.frombuffer(self.data, dtype=torch.uint8, count=count * itemsize, offset=begin).view(dtype)
        else:
            flat = torch.empty(0, dtype=dtype, device="cpu")
        return flat.reshape([shape[axis] for axis in axes]).permute(_inverse(axes))

    def _counted(self, shape, axes, itemsize):
        """How many numbers there are, and where they begin."""
        for one in _a_list(shape):
            if type(one) is not int or one < 0:
                raise Broken("no shape")
        if len(shape) > _MOST_AXES or sorted(_a_list(axes)) != list(range(len(shape))):
            raise Broken("no axes")
        count = math.prod(shape)
        return count, self._next(count * itemsize)

    def _next(self, count):
        if type(count) is not int or count < 0:
            raise Broken("no size")
        begin = self.at + -self.at % _ALIGNED
        self.at = begin + count
        if self.at > len(self.data):
            raise Broken("fewer bytes than are described")
        return begin


def _a_list(value):
    return value if type(value) is list else _broken(value)


def _inverse(axes):
    return [axes.index(axis) for axis in range(len(axes))]


def _broken(_):
    raise Broken("no description")
