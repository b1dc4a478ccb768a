"""The optimiser's steps, which are the job's where no loader hands over the batches that it trains with."""

import sys

from stallscope import _native

from . import process
from .patch import attribute, replace

_torch = None


def hook_optimizers(module):
    """`module`: torch.optim.optimizer."""
    global _torch
    # Still being imported itself.
    _torch = sys.modules["torch"]
    _native.watch_steps(begin)
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:
        # Before torch 2.0: here each class of optimisers gets its `step` wrapped for torch's profiler, once.
        replace(attribute(module, "Optimizer"), "_hook_for_profile", _wrapping_step)
    elif _stepped not in module._global_optimizer_post_hooks.values():
        register(_stepped)


def begin():
    """A step was made in this process: it trains."""
    process.tell_kind("trainer")


def _count(optimizer, stepped=_native.optimiser_stepped):
    stepped(optimizer)


# Where dynamo compiles `Optimizer.step`, it leaves this to Python.
setattr(_count, "_torchdynamo_disable", True)  # noqa: B010


def _stepped(optimizer, args, kwargs):
    # A graph may not be broken that would be whole without us; torch's own optimisers break theirs. Dynamo settles this line
    # while it compiles.
    is_compiling = getattr(getattr(_torch, "compiler", None), "is_compiling", _not_compiling)
    if is_compiling() and not type(optimizer).__module__.startswith("torch.optim."):
        return
    _count(optimizer)


def _not_compiling():
    return False


def _wrapping_step(original):
    def _hook_for_profile(self):
        original(self)
        _attempt(self)

    return _hook_for_profile


def _attempt(optimizer):
    try:
        # One that a class inherits is wrapped there.
        if "step" in vars(type(optimizer)):
            replace(type(optimizer), "step", _counted)
    except Exception as error:
        process.unavailable(f"The steps of {type(optimizer).__name__} cannot be seen: {error}.")


def _counted(original, stepped=_native.optimiser_stepped):
    def step(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        stepped(self)
        return result

    # What torch looks at to see that it has been here.
    step.hooked = True
    return step
