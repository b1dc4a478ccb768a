"""Checkpoints in Lightning, by one line: `Trainer(callbacks=[stallscope.lightning.CheckpointCallback("ckpts/")])`.

Needs Lightning 2. What Lightning would put into a checkpoint of its own goes into ours, loops and callbacks included; `fit()`
goes on from the newest that verifies. A `stallscope.DataLoader` keeps its position, as every loader with a state does.
"""

from __future__ import annotations

import inspect

import torch

from stallscope import Checkpointer, _notices, _random
from stallscope.data.resume.persistent_workers import watch
from stallscope.data.resume.position import before

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.callbacks import StochasticWeightAveraging
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment]
    from pytorch_lightning.callbacks import StochasticWeightAveraging  # type: ignore[assignment]


# What callbacks have set otherwise than the fit began with, as an epoch began: a Trainer that resumes within it has it not done again.
_TO_ACCUMULATE, _TRAINED = "stallscope: accumulate_grad_batches", "stallscope: requires_grad"
# What stands for the whole state until the first step.
_WEIGHTS = "stallscope: weights"


class _Trainer:
    """A Trainer's state as an object has one, but for its loaders."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.to_accumulate, self.trained, self.loaded = None, {}, {}
        self.fit_begins()
        # Whether a step was trained: from then on Lightning's own ModelCheckpoint would ask what is to be saved.
        self.has_stepped = False

    def fit_begins(self):
        """All callbacks have done what they do as a fit starts; what they had done later is done again."""
        self.given_to_accumulate = self.trainer.accumulate_grad_batches
        self.given_to_train = self._trained()
        self._train(self.trained)
        if self.loaded:
            # A LearningRateFinder has loaded what it saved in between, and the loaders that it left take no state any more.
            self.trainer._checkpoint_connector._loaded_checkpoint, self.loaded = self.loaded, {}
            self.trainer.fit_loop._combined_loader = None

    def state_dict(self):
        if not self.has_stepped:
            # What hooks of the script's put into a checkpoint may be made as training begins.
            return {_WEIGHTS: self._weights(), _TRAINED: self._trained()}
        state = self.trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        state["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)
        if self.trainer.accumulate_grad_batches != self.given_to_accumulate:
            state[_TO_ACCUMULATE] = self.trainer.accumulate_grad_batches
        state[_TRAINED] = {name: one for name, one in self._trained().items() if one != self.given_to_train.get(name)}
        return state

    def load_state_dict(self, state):
        if _WEIGHTS in state:
            self._take_back(state)
            return
        self.to_accumulate = state.pop(_TO_ACCUMULATE, None)
        self.trained = state.pop(_TRAINED, {})
        # Optimisers and loops follow: Lightning takes them from here when it has called all on_fit_start.
        connector = self.trainer._checkpoint_connector
        connector._loaded_checkpoint = self.loaded = state
        # As Lightning does it: a callback may set the module to something else than what is called its state.
        connector.restore_model()
        connector.restore_datamodule()
        connector.restore_callbacks()

    def _take_back(self, before):
        """What state_dict() gave before a state was loaded that was refused: Lightning is to load none."""
        self.to_accumulate, self.trained, self.loaded = None, {}, {}
        self.trainer._checkpoint_connector._loaded_checkpoint = {}
        weights = self._weights()
        with torch.no_grad():
            for name, one in before[_WEIGHTS].items():
                if name in weights:
                    weights[name].copy_(one)
        self._train(before[_TRAINED])

    def _weights(self):
        module = self.trainer.lightning_module
        named = [*module.named_parameters(), *module.named_buffers()]
        return {name: one.detach() for name, one in named if not torch.nn.parameter.is_lazy(one)}

    def _train(self, trained):
        for name, parameter in self.trainer.lightning_module.named_parameters():
            parameter.requires_grad_(trained.get(name, parameter.requires_grad))

    def _trained(self):
        return {name: one.requires_grad for name, one in self.trainer.lightning_module.named_parameters()}


class _Loaders:
    """The position of a Trainer's loaders, which is each rank's own."""

    def __init__(self, trainer):
        self.trainer = trainer

    def state_dict(self):
        loop = self.trainer.fit_loop
        # Before 2.2 Lightning knew none.
        kept = getattr(loop._combined_loader, "_state_dicts", None)
        # Of loaders without a length it takes a batch ahead, which is not trained with yet.
        ahead = len(getattr(loop._data_fetcher, "batches", ()))
        return {"states": [before(one, ahead) for one in kept()] if kept is not None else []}

    def load_state_dict(self, state):
        # Behind the Trainer's own, of which it takes the rest.
        loaded = self.trainer._checkpoint_connector._loaded_checkpoint
        if state["states"]:
            loaded["loops"]["fit_loop"]["state_dict"]["combined_loader"] = state["states"]


def _validation_follows(trainer):
    due = trainer.fit_loop.epoch_loop._should_check_val_fx
    # Lightning 2.0 asks without the fetcher.
    return due(trainer.fit_loop._data_fetcher) if inspect.signature(due).parameters else due()


def _anneals(callback):
    """Whether it has begun to average, as a state that it loaded says, and its learning rate has not arrived yet."""
    state = getattr(callback, "_scheduler_state", None) if isinstance(callback, StochasticWeightAveraging) else None
    return state is not None and state["_step_count"] <= state["anneal_epochs"]


class CheckpointCallback(Callback):
    """Saves and restores with a `stallscope.Checkpointer`. Not for strategies that shard.

    It restores as a fit starts, before other callbacks hear of that, as Lightning restores its own checkpoints. In a step it runs after all other
    callbacks, whose part of it is done by then. What the module does in an `on_train_batch_end` of its
    own comes later, and is not in a save of that step. A save that is due at an epoch's last batch or before a validation comes
    with the next batch: a Trainer that resumed from it would skip that validation, and the following epoch.

    Args:
        folder: Folder of the checkpoints.
        **options: Further arguments of `stallscope.Checkpointer`, such as `overhead`, `every` and `keep`.

    Raises:
        CheckpointError: From `fit()`, where `stallscope.Checkpointer` or its `restore()` raises it.

    Example::

        trainer = lightning.Trainer(callbacks=[stallscope.lightning.CheckpointCallback("ckpts/", every="10m")])
        trainer.fit(module, loader)
    """

    def __init__(self, folder, **options):
        self.folder = folder
        self.options = options
        self.start = None
        """Where the last `fit()` went on from; None where it began."""
        self._trainer = self._checkpointer = None
        # The generators as they were restored; None where nothing was.
        self._random = None
        # Steps since the last one at which a save can be taken, and whether there was one.
        self._passed, self._could_save = 0, False
        # Hooks of the optimisers that the module steps by itself, and whether one of them stepped in this batch.
        self._hooks, self._stepped = [], False

    def setup(self, trainer, module, stage):
        # Before the sanity check, whose workers may stay and are part of the position.
        watch()
        if stage != "fit":
            return
        # Anew, as the list is being iterated. It is the first to hear that the fit starts, for others that go by a state that was loaded, and the last.
        others = [one for one in trainer.callbacks if one is not self]
        trainer.callbacks = [self, *others, self]

    def on_fit_start(self, trainer, module):
        if self._checkpointer is not None:
            self._fit_started()
            return
        trainer.callbacks = [*(one for one in trainer.callbacks if one is not self), self]
        self._passed, self._could_save = 0, False
        self._trainer = _Trainer(trainer)
        self._checkpointer = Checkpointer(self.folder, trainer=self._trainer, loader=_Loaders(trainer), **self.options)
        self.start = self._checkpointer.restore()
        self._random = _random.capture() if self.start is not None else None

    def _fit_started(self):
        self._trainer.fit_begins()
        if self._random is not None:
            # Which others have drawn from again as the fit started.
            _random.restore(self._random)
            self._random = None

    def on_train_start(self, trainer, module):
        if self.start is not None and any(map(_anneals, trainer.callbacks)):
            _notices.warn(
                "stallscope: Lightning's StochasticWeightAveraging takes no step of its schedule at the end of an epoch that a Trainer resumed within, so that the learning "
                "rate is annealed an epoch later than in a job that was never stopped",
                2,
            )
        # Not before: a GradientAccumulationScheduler takes what it has not set itself for the user's.
        if self._trainer.to_accumulate is not None:
            trainer.accumulate_grad_batches = self._trainer.to_accumulate
        if not module.automatic_optimization:
            hooked = [one for one in trainer.optimizers if hasattr(one, "register_step_post_hook")]
            self._hooks = [one.register_step_post_hook(self._step_ended) for one in hooked]

    def _step_ended(self, *ignored):
        self._stepped = True

    def on_train_batch_end(self, trainer, *ignored):
        # Batches of an accumulated gradient are no step.
        loop = trainer.fit_loop.epoch_loop
        if loop._should_accumulate() or self._hooks and not self._stepped:
            return
        self._stepped = False
        if loop.batch_progress.is_last_batch or _validation_follows(trainer):
            self._passed += 1
            if self._passed == 2 and not self._could_save:
                _notices.warn(
                    "stallscope: each step ends an epoch or is followed by validation, and there no checkpoint is taken: make epochs "
                    "longer or validate less often to have some",
                    2,
                )
            return
        self._trainer.has_stepped = True
        self._checkpointer._pass_over(self._passed)
        self._passed, self._could_save = 0, True
        self._checkpointer.step()

    def on_fit_end(self, trainer, module):
        self._close()

    def on_exception(self, trainer, module, error):
        self._close()

    def _close(self):
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._trainer = self._checkpointer = None
