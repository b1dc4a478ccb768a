"""Modes of torch that a script has put around its training, such as one that counts what is done to tensors: what we ask of its tensors is none of it."""

import contextlib
import sys

_STACKS = ("_len_torch_function_stack", "_len_torch_dispatch_stack")


@contextlib.contextmanager
def unseen():
    """Within, no mode of this thread sees what is done."""
    torch = sys.modules["torch"]
    if not any(getattr(torch._C, name, int)() for name in _STACKS):
        yield
        return
    dispatching = sys.modules.get("torch.utils._python_dispatch")
    without = getattr(dispatching, "_disable_current_modes", contextlib.nullcontext)
    with torch._C.DisableTorchFunction(), without():
        yield
