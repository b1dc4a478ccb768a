"""A batch that fails in an added worker is asked of one of the script's own.

A data set may know only as many workers as the script has: it keeps a table of what each of them has open, say, and a further number is beyond its end. Such a
batch is the script's own workers' to make. Where it fails there, too, the error is the sample's, as it would be without us.
"""

import sys


class Again:
    """Of one iterator, for `size`."""

    def __init__(self, size):
        self.size = size
        # The processes that were added, also in the place of one of the script's own that has left.
        self.added = set()
        # What was drawn last.
        self.drawn = None
        # By the batch's number: what was drawn for one that an added worker has to make, and what failed there.
        self.given, self.failed = {}, {}
        # Those that were asked for again before anything came, and may come twice: what was drawn for them.
        self.doubled = {}

    def forget(self):
        """An epoch begins: what comes of the one before is dropped."""
        self.given.clear()
        self.failed.clear()
        self.doubled.clear()

    def sent(self, iterator, number):
        """Batch `number` was asked of a worker. A stream's are no other worker's to make."""
        if iterator._workers[iterator._task_info[number][0]] in self.added and not self.size.split:
            self.given[number] = self.drawn

    def is_asked(self, iterator, number, data):
        """Whether batch `number`, which came as `data`, is asked for again."""
        drawn = self.given.pop(number, None)
        failed = isinstance(data, sys.modules["torch._utils"].ExceptionWrapper)
        if number in self.failed:
            why = self.failed.pop(number)
            if not failed:
                self.size.workers_fail(iterator, why)
            return False
        # Of one that may come twice, what failed may be that of the worker that was given up.
        drawn = self.doubled.get(number) if drawn is None else drawn
        if drawn is None or not failed:
            return False
        self._ask(iterator, number, drawn)
        self.failed[number] = f"A worker that was added fails where the script's own do not: {data.exc_msg.strip().splitlines()[-1]}"
        return True

    def all_of(self, iterator, worker):
        """Asks for all batches again that this added worker still has to make."""
        for number in [number for number, info in iterator._task_info.items() if info == (worker,)]:
            self.doubled[number] = self.given.pop(number)
            self._ask(iterator, number, self.doubled[number])

    def has_come(self, iterator, number):
        """Whether this is a batch that has come before."""
        return number in self.doubled and len(iterator._task_info.get(number, "no")) == 2

    def _ask(self, iterator, number, drawn):
        """Of one of the script's own workers."""
        own = [place for place, process in enumerate(iterator._workers) if process not in self.added]
        worker, own = iterator._task_info[number][0], own[number % len(own)]
        iterator._index_queues[own].put((number, drawn))
        iterator._task_info[number] = (own,)
        if hasattr(iterator, "_workers_num_tasks"):
            iterator._workers_num_tasks[worker] -= 1
            iterator._workers_num_tasks[own] += 1
