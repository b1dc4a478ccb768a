"""Hugging Face's Trainer saves when it is worth it: `Trainer(callbacks=[stallscope.transformers.CheckpointCallback()])`.

The Trainer keeps its own checkpoints and its own way to resume (`train(resume_from_checkpoint=True)`), and this decides when:
by what its saves cost and how often jobs fail. Set `save_strategy="no"`, so that nothing else does.
"""

from __future__ import annotations

from transformers import TrainerCallback

from stallscope import _native
from stallscope.checkpoint import ranks
from stallscope.checkpoint.when import LOOK_S, seconds


class CheckpointCallback(TrainerCallback):
    """`overhead`: the part of training's time that saves may cost at most; `mtbf`: the mean time between failures."""

    def __init__(self, overhead=0.02, mtbf="24h"):
        self.timing = _native.CheckpointTiming("budget", overhead, seconds(mtbf, "mtbf"), 0.0)
        self.ranks = None
        self.look_at = 0
        self.began_ns = None

    def on_step_end(self, args, state, control, **ignored):
        if self.ranks is None:
            self.ranks = ranks.of_this_job()
        why, _ = self.timing.step(_native.now(), 0, False)
        if self.ranks.world_size > 1:
            if state.global_step < self.look_at:
                return
            first = self.ranks.rank == 0
            _, step_s = self.timing.outlook()
            ahead = min(1000, int(LOOK_S / step_s)) if step_s > 0 else 1
            why, ahead = self.ranks.most([int(first and why is not None), ahead if first else 0])
            self.look_at = state.global_step + max(1, ahead)
        if why:
            control.should_save = True
            self.began_ns = _native.now()

    def on_save(self, args, state, control, **ignored):
        if self.began_ns is not None:
            self.timing.saved(self.began_ns, _native.now())
            self.began_ns = None
