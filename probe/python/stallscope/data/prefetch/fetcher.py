"""A fetcher: a process that reads samples from their source before a worker asks for them.

It is forked by the fork server, which was forked as torch's workers are, has one thread, makes no sample and hands
nothing over: what it reads lies in the staging space. Nobody waits for it for long, so it may fail, hang or be killed
at any moment.
"""

import gc
import os
import random
import signal
import stat
import time
from functools import partial
from multiprocessing.connection import wait

import torch
import torch.utils.data

from stallscope.data.cache import open_hook
from stallscope.data.cache.reader import tag_of

from . import shared_memory

# What a script may handle: its handlers are none of a fetcher's.
SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
)  # fmt: skip
# How often it looks whether it is wanted.
_LOOK_S = 1.0
# Opens of a data set that goes on after it was asked to stop.
_MOST_OPENS = 4


class _Left(BaseException):
    """Ends the making of a sample whose file has been read. No Exception, which data sets may catch."""


def run(number, parent, shared, group, process_table, pipe, base, parts, looks, space, staging, begin):
    """The process. `pipe`: where the uses to come arrive."""
    try:
        process_table.enter(number)
        settle("stallscope-ahead", ())
        if os.getppid() != parent:
            return
        begin(number)
        most_bytes = staging.figures().get("capacity_bytes", 0) // 2
        fetcher = _Parts(base) if parts else _Files(base, most_bytes, looks)
        fetcher.places(number, space, staging, shared)
        _serve(number, parent, pipe, shared, group, fetcher)
    except BaseException:
        # Whatever it is, the workers read by themselves.
        os._exit(1)
    finally:
        # Nothing of the training process's is to be ended or flushed by its child.
        os._exit(0)


def settle(name, others):
    """As a process of its own, called `name`, that has no use for the descriptors `others`."""
    for one in SIGNALS:
        # An interrupt is the training process's, and by its end comes ours.
        signal.signal(one, signal.SIG_IGN if one == signal.SIGINT else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # What is collected of what was there would believe itself in the training process.
    gc.freeze()
    for fd in others:
        try:
            os.close(fd)
        except OSError:
            pass
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass
    torch.set_num_threads(1)


class Beginning:
    """What a worker of torch's has before it makes its first batch: a number, seeds, and the script's own function."""

    def __init__(self, init, workers, dataset, maker):
        self.init = init
        self.workers = workers
        self.dataset = dataset
        self.maker = maker

    def __call__(self, number):
        # Behind the workers' own, as that of one that is added.
        worker = torch.utils.data._utils.worker
        number += self.workers
        seed = random.getrandbits(63)
        random.seed(seed)
        torch.manual_seed(seed)
        worker._worker_info = worker.WorkerInfo(
            id=number, num_workers=number + 1, seed=seed, dataset=self.dataset
        )
        if self.init is not None and not self.maker.begun(partial(self.init, number)):
            raise ValueError("the init function makes another data set")


def _serve(number, parent, pipe, shared, group, fetcher):
    while number < shared.wanted and group == shared.group and os.getppid() == parent:
        if not wait([pipe], _LOOK_S):
            continue
        try:
            # All that is written is of 8 bytes or a multiple, and so is all that is read.
            record = os.read(pipe, 8)
        except BlockingIOError:
            # Another one was faster.
            continue
        if not record:
            return
        fetcher.use(*shared_memory.heard(int.from_bytes(record, "little")))


class _Fetcher:
    def places(self, number, space, staging, shared):
        self.number = number
        self.space = space
        self.staging = staging
        self.shared = shared

    def use(self, sample, number, before):
        """Reads the sample for its use in pass `number` that has so many `before` it."""
        if self.shared.is_over(sample, number, before):
            return
        try:
            self.fetch(sample, number, before)
        except Exception:
            # The worker meets it by itself.
            self.shared.add(self.number, failed=1)

    def put(self, sample, tag, number, before, read):
        """Puts `read()` into the staging space, unless it is there, or somebody is at it, or its use is over. None is
        no sample."""
        if self.space.has(sample, tag) or self.staging.has(sample, tag):
            return
        if not self.staging.claim(sample, 0, tag):
            return
        began_ns, data = time.monotonic_ns(), None
        try:
            # The holder of the claim before may have used it.
            if self.shared.is_over(sample, number, before):
                return
            data = read()
        finally:
            if data is None:
                self.staging.give_up(sample)
        if data is None:
            self.shared.add(self.number, failed=1)
            return
        now_ns = time.monotonic_ns()
        # By the time of the fill the first to come is the first to go, whichever process fills.
        kept = self.staging.fill(sample, tag, data, now_ns // 1000, 0)
        self.shared.add(self.number, reads=1, bytes=len(data), read_ns=now_ns - began_ns, failed=not kept)


class _Parts(_Fetcher):
    """Of a data set with `fetch` and `decode`."""

    def __init__(self, base):
        self.base = base

    def fetch(self, sample, number, before):
        def read():
            data = self.base.fetch(sample)
            if isinstance(data, memoryview):
                return bytes(data)
            return data if isinstance(data, (bytes, bytearray)) else None

        self.put(sample, 0, number, before, read)


class _Files(_Fetcher):
    """Of a data set each of whose samples opens one file: begins a sample, and leaves it where the file is opened."""

    def __init__(self, base, most_bytes, looks):
        self.base = base
        self.most_bytes = most_bytes
        # Whether a file is looked at with each use.
        self.looks = looks
        open_hook.install()

    def fetch(self, sample, number, before):
        self.use_now, self.opens = (sample, number, before), 0
        try:
            open_hook.made_by(self, lambda: self.base[sample])
        except _Left:
            return
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            self.shared.add(self.number, failed=1)
        else:
            # It opened nothing, or did not let itself be stopped: what was made of it was work for nothing.
            self.shared.add(self.number, failed=1)

    def opened(self, original, args, kwargs):
        try:
            path = open_hook.path_of(*args, **kwargs)
        except TypeError:
            path = None
        self.opens += 1
        if path is None or self.opens > _MOST_OPENS:
            return original(*args, **kwargs)
        if self.opens == 1:

            tag = tag_of(path, self.looks)

            def read():
                with original(*args, **kwargs) as file:
                    described = os.fstat(file.fileno())
                    whole = stat.S_ISREG(described.st_mode) and 0 < described.st_size <= self.most_bytes
                    whole = whole and (not self.looks or tag == tag_of(path, self.looks, described))
                    data = file.read() if whole else None
                    return data if whole and len(data) == described.st_size else None

            sample, number, before = self.use_now
            self.put(sample, tag, number, before, read)
        raise _Left
