"""Tensors on devices: copied by the device itself into the arena, which its driver has pinned."""

import ctypes

import torch


class Device:
    """Copies from CUDA. Without a GPU the tests have a stand-in; with one, test_on_a_gpu.py."""

    def __init__(self):
        # By address: its size, and whether the driver took it.
        self.pinned = {}
        # Those whose tensors are saved.
        self.devices = set()

    def meet(self, device):
        if device.type == "cuda":
            self.devices.add(device)

    def copy(self, tensor, address, size):
        """Starts the copy of a dense `tensor` to `size` bytes at `address`."""
        if size == 0:
            return
        memory = (ctypes.c_char * size).from_address(address)
        target = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
        target.copy_(tensor, non_blocking=True)
        self.devices.add(tensor.device)

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
        """Until all that was queued is done, on every stream of every device: copies, and the job's own work."""
        for device in self.devices:
            torch.cuda.synchronize(device)

    def close(self):
        """To be called before the arenas' memory goes."""
        for address in list(self.pinned):
            self.unpin(address)
