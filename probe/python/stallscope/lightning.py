"""Checkpoints in Lightning, by one line: `Trainer(callbacks=[stallscope.lightning.CheckpointCallback("ckpts/")])`.

Needs Lightning 2. What Lightning would put into a checkpoint of its own goes into ours, loops and callbacks included; `fit()`
goes on from the newest that verifies. A `stallscope.DataLoader` keeps its position, as every loader with a state does.
"""

from __future__ import annotations

import warnings

from stallscope import Checkpointer

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment]


class _Trainer:
    """A Trainer's state as an object has one."""

    def __init__(self, trainer):
        self.trainer = trainer

    def state_dict(self):
        return self.trainer._checkpoint_connector.dump_checkpoint(weights_only=False)

    def load_state_dict(self, state):
        # Optimisers and loops follow: Lightning takes them from here when it has called all on_fit_start.
        connector = self.trainer._checkpoint_connector
        connector._loaded_checkpoint = state
        # As Lightning does it: a callback may set the module to something else than what is called its state.
        connector.restore_model()
        connector.restore_datamodule()
        connector.restore_callbacks()


class CheckpointCallback(Callback):
    """Saves and restores with a `stallscope.Checkpointer`. Not for strategies that shard.

    It goes behind all other callbacks, whose part of a step is done by then; what the module does in an `on_train_batch_end` of its
    own comes after it, and is not in a save of that step. It never saves at an epoch's last batch, but with the next
    one: a Trainer that resumes there leaves that epoch's validation out, and the epoch that follows.

    Args:
        folder: Where the checkpoints go.
        **options: Further arguments of `stallscope.Checkpointer`, such as `overhead`, `every` and `keep`.

    Raises:
        CheckpointError: In `fit()`, as `stallscope.Checkpointer` and its `restore()` raise it.

    Example::

        trainer = lightning.Trainer(callbacks=[stallscope.lightning.CheckpointCallback("ckpts/", every="10m")])
        trainer.fit(module, loader)
    """

    def __init__(self, folder, **options):
        self.folder = folder
        self.options = options
        self.start = None
        """Where the last `fit()` went on from; None where it began."""
        self._checkpointer = None
        # Steps that ended an epoch since the last other one.
        self._at_ends = 0

    def on_fit_start(self, trainer, module):
        # Anew, as the list is being iterated.
        trainer.callbacks = [*(one for one in trainer.callbacks if one is not self), self]
        self._at_ends = 0
        self._checkpointer = Checkpointer(self.folder, trainer=_Trainer(trainer), **self.options)
        self.start = self._checkpointer.restore()

    def on_train_batch_end(self, trainer, *ignored):
        # Batches of an accumulated gradient are no step.
        loop = trainer.fit_loop.epoch_loop
        if loop._should_accumulate():
            return
        if loop.batch_progress.is_last_batch:
            self._at_ends += 1
            if self._at_ends == 2:
                warnings.warn(
                    "stallscope: each epoch has one step, at whose end no checkpoint is taken: make epochs longer to have some",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return
        self._checkpointer._pass_over(self._at_ends)
        self._at_ends = 0
        self._checkpointer.step()

    def on_fit_end(self, trainer, module):
        self._close()

    def on_exception(self, trainer, module, error):
        self._close()

    def _close(self):
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None
