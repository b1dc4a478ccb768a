"""Data sets that were packed by `stallscope pack`."""

from .dataset import PackedDataset
from .errors import PackError
from .images import PackedImageFolder
from .pictures import PackedImages
from .shuffle import Shuffle

__all__ = ["PackError", "PackedDataset", "PackedImageFolder", "PackedImages", "Shuffle"]
