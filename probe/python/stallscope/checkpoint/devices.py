"""Where what is restored belongs: checkpoints are read into the memory of the CPU."""

import torch

from .dtensors import is_dtensor


def on_devices_of(here, value):
    """`value`, each of its tensors on the device of the one that is in its place `here`, and otherwise where it is."""
    return _moved(here, value, {})


def _moved(here, value, moved):
    if isinstance(value, torch.Tensor):
        if not isinstance(here, torch.Tensor) or is_dtensor(value) or here.device == value.device:
            return value
        # One that is in several places stays one.
        key = id(value), here.device
        if key not in moved:
            there = value.detach().to(here.device)
            moved[key] = torch.nn.Parameter(there, value.requires_grad) if isinstance(value, torch.nn.Parameter) else there.requires_grad_(value.requires_grad)
        return moved[key]
    if isinstance(value, dict) and isinstance(here, dict):
        for key in value.keys() & here.keys():
            value[key] = _moved(here[key], value[key], moved)
    elif type(value) is list and isinstance(here, (list, tuple)):
        value[:] = [_moved(mine, one, moved) for mine, one in zip(here, value)] + value[len(here) :]
    elif type(value) is tuple and isinstance(here, (list, tuple)):
        return tuple(_moved(mine, one, moved) for mine, one in zip(here, value)) + value[len(here) :]
    return value
