"""Tensors on devices: copied by the device itself into the arena, which its driver has pinned."""

import ctypes

import torch


class Device:
    """Copies from CUDA. Not tried on a GPU: the tests have a stand-in."""

    def __init__(self):
        self.pinned = {}

    def copy(self, tensor, address, size):
        """Starts the copy of a dense `tensor` to `size` bytes at `address`."""
        memory = (ctypes.c_char * size).from_address(address)
        target = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
        target.copy_(tensor, non_blocking=True)

    def pin(self, address, size):
        """Pins the arena, which stays where it is from save to save; where that is refused, copies are merely slower."""
        if self.pinned.get(address) == size:
            return
        runtime = torch.cuda.cudart()
        if address in self.pinned:
            runtime.cudaHostUnregister(address)
        runtime.cudaHostRegister(address, size, 0)
        self.pinned[address] = size

    def wait(self):
        """Until every copy has arrived."""
        torch.cuda.synchronize()
