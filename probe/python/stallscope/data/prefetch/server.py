"""The fork server: makes the fetchers of one loader and waits for their end, whenever somebody turns their number.

The training process forks it where torch forks its workers, before the first batch, and nothing later: a process that
trains has threads and a GPU's context, and a fork may leave a lock held that nobody frees. This one has one thread.
"""

import multiprocessing
import multiprocessing.connection
import os
import time

from . import fetcher, shared_memory

# The least time between two looks at what is wanted and who has ended; and the most, where something may be missed.
_LOOK_S, _LATEST_S = 0.05, 1.0
# After so many that died, none are made anew.
MOST_DEATHS = 8


def run(parent, others, shared, group, doorbell, process_table, given):
    """The process. `others`: descriptors that are none of its business; `doorbell`: what wakes it; `given`: what
    fetchers have."""
    try:
        fetcher.settle("stallscope-fork", others)
        if os.getppid() == parent:
            # Training ends it as a daemon, and of those multiprocessing wants no children.
            multiprocessing.current_process()._config["daemon"] = False
            _Server(parent, shared, group, doorbell, process_table).serve(given)
    except BaseException:
        # Whatever it is, the workers read by themselves.
        os._exit(1)
    finally:
        # Nothing of the training process's is to be ended or flushed by its child.
        os._exit(0)


class _Server:
    def __init__(self, parent, shared, group, doorbell, process_table):
        self.parent = parent
        self.shared = shared
        self.group = group
        self.doorbell = doorbell
        self.process_table = process_table
        self.fetchers = {}
        try:
            # Tells when training has ended. It is the parent's own: who has ended is the parent no more.
            self.training = os.pidfd_open(parent)
        except (AttributeError, OSError):
            # An old kernel; it is looked at instead.
            self.training = None

    def serve(self, given):
        shared = self.shared
        while self._has_trainer() and self.group == shared.group:
            self._reap()
            for number in range(shared.wanted):
                if number not in self.fetchers and shared.deaths <= MOST_DEATHS:
                    self.fetchers[number] = self._started(number, given)
            self._wait()
        # They end by themselves with the read under way, which may hold a lock of the data set's. Where nobody waits
        # for that lock any more, those that take long at it are ended.
        until_s, killed = None, False
        while self.fetchers:
            if not self._has_trainer() and not shared.over:
                shared.end()
            if shared.over and until_s is None:
                until_s = time.monotonic() + shared_memory.LEAVING_S
            if until_s is not None and time.monotonic() > until_s:
                if killed:
                    # What the kernel does not end.
                    return
                for process in self.fetchers.values():
                    process.kill()
                until_s, killed = time.monotonic() + shared_memory.LEAVING_S, True
            self._reap()
            if self.fetchers:
                self._wait(until_s)

    def _has_trainer(self):
        return os.getppid() == self.parent

    def _wait(self, until_s=None):
        """Until somebody rings, or training or a fetcher ends; until `until_s` at the latest."""
        things = [self.doorbell, *(process.sentinel for process in self.fetchers.values())]
        trained = self.training is not None and self._has_trainer()
        if trained:
            things.append(self.training)
        latest_s = None if trained and not self.fetchers else _LATEST_S
        if until_s is not None:
            latest_s = min(latest_s or _LATEST_S, max(0.0, until_s - time.monotonic()))
        multiprocessing.connection.wait(things, latest_s)
        try:
            os.read(self.doorbell, 4096)
        except BlockingIOError:
            pass
        # Whatever happens, it does not happen all the time.
        time.sleep(_LOOK_S)

    def _started(self, number, given):
        given = (number, os.getpid(), self.shared, self.group, self.process_table, *given)
        process = multiprocessing.get_context("fork").Process(target=fetcher.run, args=given, daemon=True)
        process.start()
        return process

    def _reap(self):
        for number, process in list(self.fetchers.items()):
            if process.is_alive():
                continue
            process.join()
            del self.fetchers[number]
            if process.exitcode != 0:
                self.shared.died()
