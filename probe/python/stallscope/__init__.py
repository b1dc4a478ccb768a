"""Stallscope: shows where a training job waits for data and checkpoints, and takes checkpoints within a budget.

Nothing is imported here that a process without torch would have to pay for: what needs torch comes when it is asked for.
"""

# As a type checker has it; `typing` itself would have to be paid for.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .checkpoint import Checkpointer, CheckpointError
    from .data import DataLoader
    from .data.pack import PackedDataset, PackedImageFolder, PackedImages, PackError, Shuffle
    from .steps import step

__version__ = "0.1.0"

# Name -> module of ours that has it.
_LAZY = {
    "Checkpointer": "checkpoint",
    "CheckpointError": "checkpoint",
    "DataLoader": "data",
    "PackError": "data.pack",
    "PackedDataset": "data.pack",
    "PackedImageFolder": "data.pack",
    "PackedImages": "data.pack",
    "Shuffle": "data.pack",
    "step": "steps",
}

__all__ = ["CheckpointError", "Checkpointer", "DataLoader", "PackError", "PackedDataset", "PackedImageFolder", "PackedImages", "Shuffle", "step"]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    # Found without us from now on: `step` is called in a loop.
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_LAZY])
