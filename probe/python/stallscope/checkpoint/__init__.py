"""Checkpoints: copied fast, written in the background, resumed exactly.

`Checkpointer` is all that a training script needs; `checkpointer.py` says how its parts work together.
"""

from .checkpointer import Checkpointer
from .errors import CheckpointError
from .start import Start

__all__ = ["CheckpointError", "Checkpointer", "Start"]
