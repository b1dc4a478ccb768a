"""Training steps that the script marks itself."""

import os

from stallscope import _native

_observed = bool(os.environ.get("STALLSCOPE_SOCKET"))
if _observed:
    from stallscope._hooks import process
    from stallscope._hooks.steps import begin

    # A script without torch meets no other hook.
    process.start()
    _native.watch_steps(begin)


def step() -> None:
    """Marks the end of a training step in the main thread; the next one begins.

    For loops without a DataLoader in which no optimiser of torch steps exactly once per iteration: a loop that
    updates its weights itself, one with a compiled optimiser of your own, or one with several optimisers where not the most
    frequent one marks an iteration. Call it at the end of each iteration of the training loop, not of the evaluation's.

    After the first call the optimiser's steps no longer count in this process. The steps of a loader that training takes its
    batches from are not affected. Outside of `stallscope run` it does nothing.

    Example:
        >>> import stallscope
        >>> weight = 1.0
        >>> for batch in ([1.0, 2.0], [3.0, 4.0]):
        ...     weight -= 0.1 * sum(weight * x for x in batch) / len(batch)
        ...     stallscope.step()
    """
    if _observed:
        _native.script_stepped()
