"""Gives a loader of torch's a position."""

import threading

import torch.utils.data

from stallscope.data.sampling.weights import Weighted

from . import persistent_workers
from .position import Positioned

_classes: dict = {}
_classes_lock = threading.Lock()


def position(loader):
    """Gives `loader`, a DataLoader of torch's, what `Positioned` has; loaders with a state of their own keep it."""
    if isinstance(loader, Weighted):
        loader = loader.loader
    kind = type(loader)
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        # Accelerate's have these methods, too, for what they have within.
        within = getattr(loader, "__dict__", {}).get("base_dataloader", loader)
        if not hasattr(within, "state_dict"):
            raise TypeError(
                f"loader: the position of a {kind.__name__} of Accelerate's is not known, which takes batches ahead of training: leave it out of "
                "prepare(), and of several ranks give each its own part by a DistributedSampler"
            )
        return loader
    if not isinstance(loader, torch.utils.data.DataLoader) or kind.__iter__ is not torch.utils.data.DataLoader.__iter__:
        raise TypeError(
            f"loader: the position of a {kind.__name__} is not known: it has no state_dict() and is no plain DataLoader; "
            "use stallscope.DataLoader or torchdata's StatefulDataLoader"
        )
    persistent_workers.watch()
    with _classes_lock:
        if kind not in _classes:
            # Named like the original, which others may show or compare.
            _classes[kind] = type(kind.__name__, (Positioned, kind), {"__module__": kind.__module__, "_given_to": kind})
        loader.__class__ = _classes[kind]
    return loader
