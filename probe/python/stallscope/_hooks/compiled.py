"""torch.compile leaves our functions of loaders alone."""

from pathlib import Path

from .patch import UnknownShape

_HOOKS = Path(__file__).parent
# Of what an optimiser, a collective or a save meets a whole graph may be asked for, and what is not traced breaks one.
_TRACED = ("checkpoint.py", "collectives.py", "steps.py")
_UNTRACED = [*(str(path) for path in _HOOKS.glob("*.py") if path.name not in _TRACED), str(_HOOKS.parent / "data") + "/"]


def hook_trace_rules(module):
    """A compiled function may have a loader's loop in it, which breaks its graph without us. Traced, what stands in for torch's functions there costs
    graphs of its own, and objects that stand in for a data set are not made as the tracer expects."""
    folders, compiled = getattr(module, "SKIP_DIRS", None), getattr(module, "_recompile_re", None)
    if not isinstance(folders, list) or compiled is None:
        raise UnknownShape("torch._dynamo.trace_rules has other lists of what is not traced")
    # Some functions have names in angle brackets: see patch.passed_over().
    folders += [*_UNTRACED, *(f"<{path}" for path in _UNTRACED)]
    compiled()
