"""Whether two samples are the same, whatever they are made of."""

import sys

import torch

_NESTING = 16


def alike(one, other, nesting=_NESTING):
    """True where nothing tells them apart."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _tensors(one, other)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(one, (numpy.ndarray, numpy.generic)):
        return _arrays(numpy, one, other)
    if nesting == 0:
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key], nesting - 1) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(alike(*pair, nesting - 1) for pair in zip(one, other))
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if type(one).__eq__ is object.__eq__ and hasattr(one, "__dict__"):
        return alike(vars(one), vars(other), nesting - 1)
    return bool(one == other)


def _tensors(one, other):
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return False
    if torch.equal(one, other):
        return True
    # What is no number is not equal to itself.
    return one.is_floating_point() and torch.equal(torch.nan_to_num(one, 0.5), torch.nan_to_num(other, 0.5))


def _arrays(numpy, one, other):
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if one.dtype.hasobject:
        return alike(one.tolist(), other.tolist(), _NESTING)
    return one.tobytes() == other.tobytes()
