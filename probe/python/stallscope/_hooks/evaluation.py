"""Evaluation that gradients don't tell: Hugging Face's Trainer takes its evaluation's batches with gradients on."""

from .patch import attribute, replace

_loops = 0


def hook_trainer(module):
    """`module`: transformers.trainer."""
    replace(attribute(module, "Trainer"), "evaluation_loop", _counted)


def under_way():
    """Whether this process is inside such a loop."""
    return _loops > 0


def _counted(original):
    def evaluation_loop(self, *args, **kwargs):
        global _loops
        _loops += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            _loops -= 1

    return evaluation_loop
