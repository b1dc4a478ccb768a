"""Hooks that are set when a module of interest is imported, and not before."""

import sys
import weakref

# Module -> the functions that hook it, each "module of ours.function".
_TARGETS = {
    "torch.utils.data.dataloader": ("dataloader.hook_dataloader",),
    "torchdata.stateful_dataloader.worker": ("dataloader.hook_worker_module",),
    "torchdata.stateful_dataloader.stateful_dataloader": ("dataloader.hook_stateful",),
    "torch.optim.optimizer": ("steps.hook_optimizers",),
    "torch.serialization": ("checkpoint.hook_torch_save",),
    "torch.distributed.checkpoint.state_dict_saver": ("checkpoint.hook_dcp",),
    "safetensors.torch": ("checkpoint.hook_safetensors",),
    "transformers.trainer": ("evaluation.hook_trainer", "checkpoint.hook_transformers"),
    "lightning.pytorch.trainer.trainer": ("checkpoint.hook_lightning",),
    "pytorch_lightning.trainer.trainer": ("checkpoint.hook_lightning",),
    "accelerate.accelerator": ("checkpoint.hook_accelerate",),
    "torch.distributed.distributed_c10d": ("collectives.hook_collectives",),
    "torch._dynamo.trace_rules": ("compiled.hook_trace_rules",),
}

# Modules whose hooks were set, or could not be, since they were last executed.
_seen: "weakref.WeakSet" = weakref.WeakSet()


def install():
    """Watches for the imports; hooks at once what is there already."""
    from .finder import Finder

    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder(_TARGETS))
    for name in _TARGETS:
        module = sys.modules.get(name)
        if module is not None:
            hook(name, module)


def hook(name, module):
    """Sets the hooks for `module`; what fails is reported and never raised. Once for each time it is executed: others
    may have wrapped our functions by the second call, which would then count again, or know the module no more."""
    if module in _seen:
        return
    _seen.add(module)
    for target in _TARGETS[name]:
        ours, _, function = target.partition(".")
        try:
            from . import process

            process.start()
            imported = __import__(f"{__name__}.{ours}", fromlist=[function])
            getattr(imported, function)(module)
        except Exception as error:
            _failed(name, error)


def renewed(module):
    """`module` is about to be executed (again), which makes its functions and classes anew."""
    from . import patch

    _seen.discard(module)
    patch.forget(module)


def _failed(name, error):
    import os

    if os.environ.get("STALLSCOPE_DEBUG"):
        import traceback

        traceback.print_exc()
    try:
        from . import process

        process.unavailable(f"{name} could not be hooked: {type(error).__name__}: {error}.")
    except Exception:
        pass
