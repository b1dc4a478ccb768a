"""The fork server: makes the fetchers of one loader and waits for their end, whenever somebody turns their number.

The training process forks it where torch forks workers, before the first batch, and nothing later: a process that
trains has threads and a GPU's context, and a fork may leave a lock held that nobody frees. This one has one thread.
"""

import multiprocessing
import os
import time

from . import ahead_fetcher
from .ahead_crew import LEAVING_S

# How often it looks what is wanted of it, and who has ended.
_LOOK_S = 0.05
# After so many that died, none are made anew.
MOST_DEATHS = 8


def run(parent, others, shared, crew, given):
    """The process. `others`: descriptors that are none of its business; `given`: what fetchers have."""
    try:
        ahead_fetcher.settle("stallscope-fork", others)
        if os.getppid() == parent:
            # Training ends it as a daemon, and of those multiprocessing wants no children.
            multiprocessing.current_process()._config["daemon"] = False
            _serve(parent, shared, crew, given)
    except BaseException:
        # Whatever it is, the workers read by themselves.
        os._exit(1)
    finally:
        # Nothing of the training process's is to be ended or flushed by its child.
        os._exit(0)


def _serve(parent, shared, crew, given):
    fetchers = {}
    while os.getppid() == parent and crew == shared.crew:
        _reap(fetchers, shared)
        for number in range(shared.wanted):
            if number not in fetchers and shared.deaths <= MOST_DEATHS:
                fetchers[number] = _started(number, (os.getpid(), shared, crew, *given))
        time.sleep(_LOOK_S)
    # They end by themselves with the read under way, which may hold a lock of the data set's; without a trainer, too.
    until_s = None
    while fetchers and os.getppid() == parent:
        if shared.over and until_s is None:
            until_s = time.monotonic() + LEAVING_S
        if until_s is not None and time.monotonic() > until_s:
            for process in fetchers.values():
                process.kill()
        _reap(fetchers, shared)
        time.sleep(_LOOK_S)


def _started(number, given):
    process = multiprocessing.get_context("fork").Process(target=ahead_fetcher.run, args=(number, *given), daemon=True)
    process.start()
    return process


def _reap(fetchers, shared):
    for number, process in list(fetchers.items()):
        if process.is_alive():
            continue
        process.join()
        del fetchers[number]
        if process.exitcode != 0:
            shared.died()
