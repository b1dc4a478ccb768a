"""Loading samples: torch's DataLoader with a position that can be kept and taken up again."""

from .loader import DataLoader

__all__ = ["DataLoader"]
