"""The `timeout` of a loader whose workers were added.

A script sets it by what its own workers take for a batch. With more of them, each has a smaller part of the processors and of the disk, and those that start take
the most. So it grows with the processes that there are. Where it has passed all the same, it begins once more without those that have handed over nothing yet.
"""

_PASSED = "The loader's timeout of {:g} s has passed while new workers were on their way."


def try_get(worker_set, iterator, try_get, timeout_s):
    """What `try_get(timeout_s)` gives, where the loader has this timeout."""
    unproven = worker_set.unproven
    while True:
        lost = len(unproven.lost)
        success, data = try_get(timeout_s * _share(worker_set, iterator))
        if success:
            return success, data
        if worker_set.candidates:
            worker_set.give_up(iterator, _PASSED.format(timeout_s))
        elif len(unproven.lost) == lost:
            return success, data


def _share(worker_set, iterator):
    """How many processes there are for each of the script's own workers."""
    there = len(iterator._workers) + len(worker_set.candidates) + len(worker_set.leaving) + len(worker_set.dismissed)
    return max(1.0, there / worker_set.size.own_workers)
