"""Data sets that were packed by `stallscope pack`."""

from .dataset import PackedDataset
from .errors import PackError
from .images import PackedImageFolder
from .shuffle import Shuffle

__all__ = ["PackError", "PackedDataset", "PackedImageFolder", "Shuffle"]
