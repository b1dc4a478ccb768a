"""Checkpoints: copied fast, written in the background, resumed exactly.

`Checkpointer` is all that a training script needs; `checkpointer.py` says how its parts work together.
"""

from .checkpointer import Checkpointer, Start
from .errors import CheckpointError

__all__ = ["CheckpointError", "Checkpointer", "Start"]
