"""A record of which samples were used, for `stallscope simulate FILE`: a line a use, in the order of the hand-over."""

import operator
import os
import stat

from stallscope import _notices
from stallscope.data.cache.split import base_index
from stallscope.data.seeding.draws import drawn, plain

HEADER = "epoch,id,bytes,score"
# Written in pieces of so many characters.
_PIECE = 1 << 18
# More than that is not recorded: a trace is read into memory.
_MOST_USES = 50_000_000
_MOST_ID = 2**32 - 1


class Trace:
    """Of one loader. Whatever goes wrong, one warning says so, and no more is recorded."""

    def __init__(self, path, rank):
        root, ending = os.path.splitext(os.path.abspath(path))
        self.path = f"{root}-rank{rank}{ending}" if rank else root + ending
        # Those who are forked have what is not written yet, too.
        self.process = os.getpid()
        self.lines = []
        self.length = self.uses = self.epoch = 0
        self.dataset = self.sizes = self.order = None
        self.ended = False
        try:
            self.file = _begin(self.path)
        except (OSError, ValueError) as error:
            self._end(str(error))

    def begun(self, dataset, sizes, order):
        """An epoch begins, of `dataset`. `sizes`: gives bytes by the samples' ids, or None. `order`: who draws, or None."""
        self.dataset, self.sizes, self.order = dataset, sizes, order
        self.flush()

    def batch(self, handed):
        """A batch was handed over: `handed` has its epoch and its index, or indices."""
        if self.ended:
            return
        try:
            self._add(handed.epoch, handed.index)
        except Exception as error:
            self._end(f"{type(error).__name__}: {error}")

    def _add(self, epoch, index):
        # Policies are simulated on what was drawn, whatever was given in its place.
        indices = [drawn(one) for one in (index if isinstance(index, (list, tuple)) else [index])]
        ids = [operator.index(base_index(self.dataset, plain(one))) for one in indices]
        sizes = self.sizes(ids) if self.sizes is not None else [1] * len(ids)
        known = dict(self.order.planner.scores(indices)) if self.order is not None and self.order.learns else {}
        # A position that was loaded may be of an earlier epoch; in a trace they never go back.
        self.epoch = max(self.epoch, epoch)
        for index, one, size in zip(indices, ids, sizes):
            if 0 <= one <= _MOST_ID:
                line = f"{self.epoch},{one},{size},{known.get(index, 0):g}\n"
                self.lines.append(line)
                self.length += len(line)
        self.uses += len(ids)
        if self.length >= _PIECE:
            self.flush()
        if self.uses >= _MOST_USES:
            self.flush()
            self._end(f"it has {self.uses} uses, more of which nobody reads")

    def flush(self):
        """What was recorded is in the file."""
        if self.ended or not self.lines or self.process != os.getpid():
            return
        try:
            with _open(self.path, os.O_WRONLY | os.O_APPEND) as file:
                if _which(file) != self.file:
                    raise ValueError("it is another file by now")
                file.write("".join(self.lines).encode())
        except (OSError, ValueError) as error:
            self._end(str(error))
        self.lines, self.length = [], 0

    def _end(self, why):
        self.ended, self.lines = True, []
        sentence = f"stallscope: no more of the trace {self.path} is recorded: {why}"
        _notices.warn(sentence, 2)


def _begin(path):
    """Makes the file, or empties one that is a trace of before, and gives which it is. ValueError where it is something else."""
    with _open(path, os.O_RDWR | os.O_CREAT) as file:
        if file.read(len(HEADER)) not in (b"", HEADER.encode()):
            raise ValueError("the file is there already, and is no trace")
        file.seek(0)
        file.truncate()
        file.write(f"{HEADER}\n".encode())
        return _which(file)


def _open(path, flags):
    """A plain file. Others may write into its folder: a link of theirs would have any file of this user emptied or added to, and
    the job would wait for a reader of a pipe."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError("it is no plain file")
    return open(file, "r+b" if flags & os.O_RDWR else "wb")


def _which(file):
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino
