"""Which tensors of an optimiser's state nobody else has: a restore may write into these, where torch puts others in their place."""

import collections
import sys

import torch

from .dtensors import is_dtensor, local_of

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
# How often a storage is used, as torch's memory planning asks. None in older torch, where what shares a tensor's memory is known of the job's own objects
# alone.
_uses = getattr(torch._C, "_storage_Use_Count", None)


def owned(optimizer, objects):
    """id()s of those tensors. `objects`: all of the job's. One is somebody else's too where Python or torch counts a reference more than the state's
    own, to it, to its memory, or to a dict or list on the way to it; and where it lies in the memory of another object."""
    found = set()
    if "state" in vars(optimizer) and _references(vars(optimizer), "state") == _ONE:
        others, alone = _others(optimizer, objects), _counts(torch.empty(1, device="cpu"))
        state = optimizer.state
        for key in list(state):
            _collect(state, key, others, alone, found)
    return found


def memory_of(tensor):
    """Where its storage begins."""
    return _storage(tensor).data_ptr()


def _collect(container, key, others, alone, found):
    if _references(container, key) != _ONE:
        return
    one = container[key]
    if isinstance(one, torch.Tensor):
        # What others' classes of tensors hold is not known.
        is_known = is_dtensor(one) or type(one) in (torch.Tensor, torch.nn.Parameter) and one.layout is torch.strided
        if is_known and _counts(one) == alone and memory_of(one) not in others:
            found.add(id(one))
    elif type(one) in _DICTS or type(one) in (list, tuple):
        for below in list(one) if type(one) in _DICTS else range(len(one)):
            _collect(one, below, others, alone, found)


def _references(container, key):
    # No name here may refer to it.
    return sys.getrefcount(container[key])


_ONE = _references([object()], 0)


def _counts(tensor):
    """References to the tensor within torch, and those to its memory."""
    storage = _storage(tensor)
    counts = _uses and _uses(storage._cdata), sys.getrefcount(storage)
    return (*counts, tensor._use_count() if hasattr(tensor, "_use_count") else 1)


def _others(optimizer, objects):
    memory = set()
    for one in objects:
        if isinstance(one, torch.nn.Module):
            tensors = [*one.parameters(), *one.buffers()]
        elif isinstance(one, torch.optim.Optimizer) and one is not optimizer:
            tensors = _tensors(list(one.state.values()))
        else:
            continue
        memory.update(map(_begin, tensors))
    # Of tensors without elements.
    return memory - {0}


def _begin(tensor):
    try:
        return memory_of(tensor)
    except (NotImplementedError, RuntimeError, ValueError):
        # Sparse and lazy ones have no storage, nor have those of some classes.
        return 0


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    below = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for one in below for tensor in _tensors(one)]


def _storage(tensor):
    local = local_of(tensor) if is_dtensor(tensor) else tensor
    return local.untyped_storage() if hasattr(local, "untyped_storage") else local.storage()
