"""Tensors into the arena: their addresses where they lie in memory, and copies by the device where they do not."""

from .device import Device
from .tree import dtype_name


class Copying:
    """Copies for one saver."""

    def __init__(self, saver, device=None):
        self.saver = saver
        self.device = device
        self.prepared = False

    def prepare(self, tensors, still):
        """Has memory populated for such tensors."""
        self.prepared = True
        listed = self.meet(tensors)
        self.saver.prepare(listed, _places(tensors, still))

    def meet(self, tensors):
        """Notes on which devices they lie; the list of them."""
        listed, on_device, _ = self._listed(tensors)
        for _, tensor in on_device:
            self.device = self.device or Device()
            self.device.meet(tensor.device)
        return listed

    def settle(self):
        """Waits for the work that makes the tensors. Copies wait for that of their own stream alone, and the job may use others."""
        if self.device is not None:
            self.device.wait()

    def snapshot(self, tensors, still):
        """Copies all of them; (snapshot, bytes)."""
        listed, on_device, held = self._listed(tensors)
        snapshot = self.saver.snapshot(listed, _places(tensors, still))
        if on_device:
            self.device = self.device or Device()
            self.device.pin(*snapshot.memory())
            for place, tensor in on_device:
                self.device.copy(tensor, *snapshot.place(place))
            self.device.wait()
        # Until here the copies' sources had to live.
        copied_bytes = sum(tensor.numel() * tensor.element_size() for tensor in held)
        return snapshot, copied_bytes

    def close(self):
        if self.device is not None:
            self.device.close()

    @staticmethod
    def _listed(tensors):
        listed, on_device, held = [], [], []
        for place, (name, tensor) in enumerate(tensors.items()):
            tensor = tensor.contiguous()
            held.append(tensor)
            here = tensor.device.type == "cpu"
            if not here:
                on_device.append((place, tensor))
            listed.append((name, dtype_name(tensor.dtype), list(tensor.shape), tensor.data_ptr() if here else None))
        return listed, on_device, held


def _places(tensors, still):
    return [place for place, name in enumerate(tensors) if name in still]
