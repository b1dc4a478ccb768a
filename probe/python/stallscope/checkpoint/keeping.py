"""Which checkpoints stay, as a script says it and as the saver takes it."""

from .when import seconds


class Keeping:
    """`keep`, `keep_every`, `monitor`, `mode` and `keep_best` of a Checkpointer; ValueError where they make no sense."""

    def __init__(self, keep, keep_every=None, monitor=None, mode="min", keep_best=1):
        if mode not in ("min", "max"):
            raise ValueError(f"mode={mode!r}: it is 'min' where less of the metric is better, and 'max' where more is")
        if keep_best < 1:
            raise ValueError(f"keep_best={keep_best!r}: it is a number of checkpoints, 1 or more")
        self.keep = keep
        self.monitor = monitor
        self.best = None if monitor is None else (monitor, mode == "min", keep_best)
        self.every = self._every(keep_every)

    @staticmethod
    def _every(keep_every):
        """(steps, seconds), of which one is None at least."""
        if keep_every is None:
            return None, None
        is_steps = isinstance(keep_every, int)
        count = keep_every if is_steps else round(seconds(keep_every, "keep_every"))
        if count < 1:
            raise ValueError(f"keep_every={keep_every!r}: it is a number of steps, or a time of a second or more")
        return (count, None) if is_steps else (None, count)

    def measured(self, metrics):
        """{name: float} of what save() was given."""
        values = {str(name): float(value) for name, value in (metrics or {}).items()}
        if values and self.monitor is not None and self.monitor not in values:
            raise ValueError(f"metrics has {', '.join(values)} and no {self.monitor!r}, which monitor= names")
        return values
