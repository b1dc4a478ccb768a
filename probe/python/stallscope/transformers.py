"""Hugging Face's Trainer with a cache, `stallscope.transformers.use_loader(trainer, cache="8GiB")`, and with saves when
they are worth it, `Trainer(callbacks=[stallscope.transformers.CheckpointCallback()])`.

The Trainer keeps its own checkpoints and its own way to resume (`train(resume_from_checkpoint=True)`); the callback says
when, by what its saves cost and how often jobs fail. Set `save_strategy="no"`, so that nothing else does.
"""

from __future__ import annotations

from transformers import TrainerCallback

from stallscope import _native
from stallscope._hooks.knobs import raised_by_signal
from stallscope.checkpoint import ranks
from stallscope.checkpoint.when import fixed, seconds, steps_ahead
from stallscope.data.cache import budget
from stallscope.data.cache.store import warn_plain
from stallscope.data.prefetch import manager
from stallscope.data.rebuilt import CannotBe, remade


def use_loader(trainer, cache, fetchers=0, cache_trace=None):
    """Makes a Trainer train from a `stallscope.DataLoader` with a cache, from its next `train()` on.

    Everything else of the loader stays as the Trainer and Accelerate make it: batches, order, seeds, collator, workers,
    and what each rank gets. If that is impossible, the Trainer's own loader stays, and a warning says why.

    Args:
        trainer: The Trainer.
        cache, fetchers, cache_trace: As `stallscope.DataLoader` takes them. `cache_key` cannot be given here.

    Returns:
        The Trainer.

    Raises:
        ValueError: `stallscope.DataLoader` does not take these arguments.
        TypeError: `trainer` is not a Trainer.

    Example::

        trainer = transformers.Trainer(model, arguments, train_dataset=dataset)
        stallscope.transformers.use_loader(trainer, cache="8GiB").train()
    """
    if not callable(getattr(trainer, "get_train_dataloader", None)):
        raise TypeError(f"use_loader() takes a Trainer of Transformers, and a {type(trainer).__name__} is none")
    options = {"cache": budget.parse(cache), "fetchers": manager.checked(fetchers), "cache_trace": cache_trace}
    # Of several calls the last one holds.
    own = getattr(trainer.get_train_dataloader, "own", trainer.get_train_dataloader)

    def get_train_dataloader():
        loader = own()
        try:
            return _with_cache(loader, options)
        except Exception as error:
            if raised_by_signal(error):
                raise
            why = str(error) if isinstance(error, CannotBe) else f"{type(error).__name__}: {error}"
            warn_plain(getattr(loader, "dataset", None), why)
            return loader

    get_train_dataloader.own = own
    trainer.get_train_dataloader = get_train_dataloader
    return trainer


def _with_cache(loader, options):
    # It says that it is of the class of the loader within, which makes its batches.
    shard = type(loader).__name__ == "DataLoaderShard" and vars(loader).get("base_dataloader")
    if not shard:
        return remade(loader, **options)
    made = remade(shard, **options)
    state = made.state_dict()
    loader.base_dataloader, loader.dl_state_dict = made, state
    return loader


class CheckpointCallback(TrainerCallback):
    """Makes the Trainer save when a save is worth its cost. Set `save_strategy="no"`, so that nothing else saves.

    Args:
        overhead: The largest share of training time that saves may cost, between 0 and 1.
        mtbf: The mean time between failures: "6h", seconds, or a timedelta.
        every: A fixed interval instead of the budget: a number of steps, or a time ("10m", or a timedelta).

    Raises:
        ValueError: `mtbf` or `every` is not a time, or `every` is not above zero.

    Example::

        arguments = transformers.TrainingArguments(folder, save_strategy="no")
        saves = stallscope.transformers.CheckpointCallback(mtbf="6h")
        trainer = transformers.Trainer(model, arguments, train_dataset=dataset, callbacks=[saves])
    """

    def __init__(self, overhead=0.02, mtbf="24h", every=None):
        rule, count = ("budget", 0.0) if every is None else fixed(every)
        self.timing = _native.CheckpointTiming(rule, overhead, seconds(mtbf, "mtbf"), count)
        self.every_steps = int(count) if rule == "steps" else None
        self.ranks = None
        self.look_at = 0
        self.saved_at = None
        self.began_ns = None

    def on_step_end(self, args, state, control, **ignored):
        if self.ranks is None:
            self.ranks = ranks.of_this_job()
            self.saved_at = state.global_step - 1
        why, _ = self.timing.step(_native.now(), 0, False)
        if self.ranks.world_size > 1:
            if state.global_step < self.look_at:
                return
            first = self.ranks.rank == 0
            due = first and why is not None
            ahead = steps_ahead(self.timing, self.every_steps, 0 if due else state.global_step - self.saved_at)
            why, ahead = self.ranks.most([int(due), ahead if first else 0])
            self.look_at = state.global_step + ahead
        if why:
            control.should_save = True
            self.saved_at = state.global_step
            self.began_ns = _native.now()

    def on_save(self, args, state, control, **ignored):
        if self.began_ns is not None:
            self.timing.saved(self.began_ns, _native.now())
            self.began_ns = None
