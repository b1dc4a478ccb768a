"""Where a job continues that was restored."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field


@dataclass
class Start:
    """Where a job continues."""

    step: int
    """Steps that were trained."""
    epoch: int | None
    """The current epoch, or the next one if it was between two; None without a loader, and with one that has a state of its own (torchdata)."""
    name: str
    """The checkpoint's, as `stallscope ckpt ls` shows it."""
    saved: datetime.datetime
    """When it was saved, in UTC."""
    passed: list = field(default_factory=list)
    """Newer ones that did not verify: (name, reason)."""
    misfits: list = field(default_factory=list)
    """With strict=False, a sentence for each part that was not restored."""
