"""torch.compile leaves our frames alone."""

from pathlib import Path

from .patch import UnknownShape

_PACKAGE = str(Path(__file__).parents[1]) + "/"


def hook_trace_rules(module):
    """A compiled function may have a loader's loop or a step of an optimiser in it. Traced, what stands in for torch's functions there costs graphs
    of its own, and objects that stand in for a data set are not made as the tracer expects."""
    folders, compiled = getattr(module, "SKIP_DIRS", None), getattr(module, "_recompile_re", None)
    if not isinstance(folders, list) or compiled is None:
        raise UnknownShape("torch._dynamo.trace_rules has other lists of what is not traced")
    # Some functions have names in angle brackets: see patch.passed_over().
    folders += [_PACKAGE, f"<{_PACKAGE}"]
    compiled()
