"""Whether what the script gives to one worker alone would be right with several: the data set, and the order of batches.

What a sample takes from an open file, a connection or an iterator depends on what was taken from it before. Forked workers share the place in a file,
and each has an iterator from its beginning. A script with several workers does without such, or knows how; one with a single worker need not.
"""

import os
import select
import stat

from . import kernel_text, outline
from .strangers import MEMORY

_WHY = (
    "resize: unavailable: the script has one worker, and its data set {}, which one process alone can take from: with more workers its samples would be "
    "others; open it in each worker, by worker_init_fn or at its first sample."
)
_OUT_OF_ORDER = (
    "resize: unavailable: the script has one worker and in_order=False, so that batches come as they are drawn: with more workers they would come in "
    "another order."
)
_FORKED = "multiprocessing.popen_fork"
# Of any process, which a script may be read from.
_STANDARD_STREAMS = 3


def why(iterator):
    """Why this iterator has to stay with its only worker, a sentence; "" where nothing shows that it does."""
    if not getattr(iterator, "_in_order", True):
        return _OUT_OF_ORDER
    taken = outline.taken(iterator._dataset, iterator._collate_fn, iterator._worker_init_fn)
    if taken:
        return _WHY.format(f"holds {taken[0]}")
    worker = iterator._workers[0]
    if type(worker._popen).__module__ == _FORKED:
        path = _read_together(worker.pid, _own_pipes(iterator))
        if path:
            return _WHY.format(f"reads from a place in {path} that forked workers share")
    return ""


def _own_pipes(iterator):
    """Those by which torch has workers get and hand over."""
    queues = [iterator._worker_result_queue, *iterator._index_queues]
    return {end.fileno() for queue in queues for end in (getattr(queue, "_reader", None), getattr(queue, "_writer", None)) if end is not None and not end.closed}


def _read_together(pid, ours=()):
    """A file that both this process and its child `pid` have open at the same place, which is not its beginning, or a pipe with something in it; None where there is
    none but `ours`."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            if descriptor < _STANDARD_STREAMS or descriptor in ours or not (_is_at_a_place(descriptor) or _is_full_pipe(descriptor)):
                continue
            ours, theirs = os.fstat(descriptor), os.stat(f"/proc/{pid}/fd/{descriptor}")
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino) and not path.startswith(MEMORY):
                return path
        except OSError:
            # It was closed meanwhile, or the child has none of this number.
            continue
    return None


def _is_full_pipe(descriptor):
    """Whether there is something to be taken from it now. One that is empty may be what tells that a process has ended."""
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def _is_at_a_place(descriptor):
    """Whether it is a file that is read from, and not from its beginning."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return False
    lines = kernel_text.of(f"/proc/self/fdinfo/{descriptor}").splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    flags = int(facts["flags"], 8)
    # A log that is appended to can be read as well, but is not read on from where the last line ended.
    return int(facts["pos"]) > 0 and flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_APPEND
