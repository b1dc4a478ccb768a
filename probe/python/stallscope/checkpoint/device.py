"""Tensors on devices: copied by the device itself into the arena, which its driver has pinned."""

import ctypes

import torch


class Device:
    """Copies from CUDA. Not tried on a GPU: the tests have a stand-in."""

    def __init__(self):
        # By address: its size, and whether the driver took it.
        self.pinned = {}
        self.used = set()

    def copy(self, tensor, address, size):
        """Starts the copy of a dense `tensor` to `size` bytes at `address`."""
        if size == 0:
            return
        memory = (ctypes.c_char * size).from_address(address)
        target = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
        target.copy_(tensor, non_blocking=True)
        self.used.add(tensor.device)

    def pin(self, address, size):
        """Pins the arena, which stays where it is from save to save; where that is refused, copies are merely slower."""
        if address in self.pinned and self.pinned[address][0] == size:
            return
        self.unpin(address)
        self.pinned[address] = size, int(torch.cuda.cudart().cudaHostRegister(address, size, 0)) == 0

    def unpin(self, address):
        _, taken = self.pinned.pop(address, (0, False))
        if taken:
            torch.cuda.cudart().cudaHostUnregister(address)

    def wait(self):
        """Until every copy has arrived, from whichever device."""
        for device in self.used:
            torch.cuda.synchronize(device)
        self.used.clear()

    def close(self):
        """To be called before the arenas' memory goes."""
        for address in list(self.pinned):
            self.unpin(address)
