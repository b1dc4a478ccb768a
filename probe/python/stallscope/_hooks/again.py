"""A batch that fails in an added worker is asked of one of the script's own.

A data set may know only as many workers as the script has: it keeps a table of what each of them has open, say, and a further number is beyond its end. Such a
batch is the script's own workers' to make. Where it fails there, too, the error is the sample's, as it would be without us.
"""

import sys


class Again:
    """Of one iterator, for `size`, which says how many workers are the script's own."""

    def __init__(self, size):
        self.size = size
        # What was drawn last.
        self.drawn = None
        # By the batch's number: what was drawn for one that an added worker has to make, and what failed there.
        self.given, self.failed = {}, {}

    def forget(self):
        """An epoch begins: what comes of the one before is dropped."""
        self.given.clear()
        self.failed.clear()

    def sent(self, iterator, number):
        """Batch `number` was asked of a worker. A stream's are no other worker's to make."""
        if iterator._task_info[number][0] >= self.size.own_workers and not self.size.split:
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
        if drawn is None or not failed:
            return False
        worker = iterator._task_info[number][0]
        iterator._index_queues[0].put((number, drawn))
        iterator._task_info[number] = (0,)
        if hasattr(iterator, "_workers_num_tasks"):
            iterator._workers_num_tasks[worker] -= 1
            iterator._workers_num_tasks[0] += 1
        self.failed[number] = f"A worker that was added fails where the script's own do not: {data.exc_msg.strip().splitlines()[-1]}"
        return True
