"""Workers that were added and have handed over nothing yet.

A data set may not do with them: its code in C ends a process that it does not know, or a sample waits for something of which there is one for each of the
script's own workers (a device, a licence, a simulator), or for a lock that a thread of training's held as the worker was forked. So until its first batch
has come, torch's guard over dead workers does not know such a worker. If it ends, or training waits for it alone, its batches are the script's own workers'
to make, and the loader goes on without added ones.
"""

import time

# So long training waits, while nobody else has anything to do. Its first sample may open and load what the others have by now.
_PATIENCE_S = 15.0
_LOOK_S = 0.5
# So long one that is to be ended may hand over what it has made.
_HANDING_OVER_S = 60.0
# How long torch waits at a time.
_INTERVAL_S = 5.0


class Unproven:
    """Of one iterator, whose batches `again` asks for again, for `size`."""

    def __init__(self, size, again):
        self.size = size
        self.again = again
        # Processes that work for the iterator.
        self.waiting = []
        # Those that are not counted on any more, and of them those that may still hand something over.
        self.lost, self.late = [], []
        self.waits_since_s = None
        # Whether one has proven itself since torch's guard heard of workers.
        self.has_proven = False
        # Whether an answer of each is awaited, as an epoch begins: then torch looks whether they live.
        self.is_resuming = False

    def handed_over(self, iterator, number):
        """A batch, or what failed in the place of one, has come."""
        self.waits_since_s = None
        info = iterator._task_info.get(number) if self.waiting else None
        if info is not None and iterator._workers[info[0]] in self.waiting:
            self.waiting.remove(iterator._workers[info[0]])
            self.has_proven = True

    def try_get(self, iterator, try_get, timeout_s=_INTERVAL_S):
        """What `try_get(timeout_s)` of torch's gives, with looks at these workers in between."""
        if self.is_resuming:
            return try_get(timeout_s)
        began_s = time.monotonic()
        if self.waits_since_s is None:
            self.waits_since_s = began_s
        while True:
            self._look(iterator, min(_PATIENCE_S, iterator._timeout / 2 if iterator._timeout > 0 else _PATIENCE_S))
            left_s = began_s + timeout_s - time.monotonic()
            try:
                success, data = try_get(max(0.0, min(left_s, _LOOK_S)))
            except RuntimeError:
                # torch has seen a worker end; where it was one of these, it is no error.
                if not self._has_lost_all_that_ended(iterator):
                    raise
                continue
            if success or left_s <= _LOOK_S:
                return success, data

    def leaves(self, process):
        """It works for the iterator no more."""
        if process in self.waiting:
            self.waiting.remove(process)
            self.lost.append(process)

    def forget(self, iterator):
        """The iterator begins another epoch with the workers that it has, and counts on an answer of each."""
        self.waits_since_s = None
        self._look(iterator, None)
        self.is_resuming = True
        if self.late:
            self._end_late(iterator)
        for process in [process for process in self.lost if process in iterator._workers]:
            number = iterator._workers.index(process)
            self.again.added.discard(iterator._workers.pop(number))
            queue = iterator._index_queues.pop(number)
            queue.cancel_join_thread()
            queue.close()

    def _end_late(self, iterator):
        """Kills those whose batches would be taken for the new epoch's. Not while one of them hands something over: it would leave a part of that
        behind, and the lock that the others wait for."""
        lock = getattr(iterator._worker_result_queue, "_wlock", None)
        deadline_s, is_held = time.monotonic() + _HANDING_OVER_S, False
        while lock is not None and not is_held and time.monotonic() < deadline_s:
            is_held = lock.acquire(timeout=_LOOK_S)
            if not is_held:
                # Something that nobody has taken fills the pipe. It is of the epoch before.
                iterator._try_get_data(_LOOK_S)
        try:
            for process in self.late:
                process.kill()
                process.join(_INTERVAL_S)
        finally:
            if is_held:
                lock.release()
        self.late.clear()

    def _look(self, iterator, patience_s):
        ended = [process for process in self.waiting if not process.is_alive()]
        if ended:
            self._lose(iterator, ended, f"A worker that was added ended before its first batch was made (exit code {ended[0].exitcode}).")
        elif patience_s is not None and time.monotonic() - self.waits_since_s >= patience_s:
            busy = {info[0] for info in iterator._task_info.values() if len(info) == 1}
            awaited = [iterator._workers[number] for number in sorted(busy)]
            if awaited and all(process in self.waiting for process in awaited):
                self._lose(iterator, awaited, f"A worker that was added had not made its first batch after {patience_s:.0f} s, for which training waited.")

    def _lose(self, iterator, processes, why):
        places = [iterator._workers.index(process) for process in processes]
        for process, number in zip(processes, places):
            self.waiting.remove(process)
            self.lost.append(process)
            self.late.append(process)
            self.again.all_of(iterator, number)
            # torch asks nothing more of it, and does not mind its end.
            iterator._workers_status[number] = False
        self.size.workers_fail(iterator, why, min(places))

    def _has_lost_all_that_ended(self, iterator):
        ended = [process for process in iterator._workers if process not in self.lost and not process.is_alive()]
        if not ended or any(process not in self.waiting for process in ended):
            return False
        self._look(iterator, None)
        return True
