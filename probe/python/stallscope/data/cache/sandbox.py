"""Trying something on a data set so that nothing of it is left: no handle, no draw, no count."""

import contextlib
import fcntl
import functools
import gc
import io
import itertools
import json
import os
import pickle
import random
import signal
import socket
import stat
import sys
import time
import warnings
from multiprocessing.connection import wait

import torch

from stallscope import _native, _random
from stallscope._hooks import strangers
from stallscope._hooks.knobs import raised_by_signal

from . import own_children
from .equality import alike
from .keys import digests, fingerprint
from .keys.plain import is_a

# Of a trial: on slow storage some samples take a while, and none may hold training up for good.
LIMIT_S = 60.0
# A child that does not run for so long, and waits for a lock, waits for a thread that was not forked with it.
_STUCK_S = 5.0
# With it a child ends that writes to memory of which it could have no copy.
_WROTE_SHARED = 119
# A data set is looked through for generators so far.
_MAX_PARTS = 10_000


def tried(trial, dataset, start_method, *more, cut_off=False):
    """`trial(dataset, *more)`, which gives plain data; {"why": …} where it could not be tried.

    In a forked child with memory of its own, however workers are started: whatever a sample opens for good must not be shared with workers, what it
    counts or draws must not show in training's own samples, and what it does to its process must not be done to the job. Where workers are not
    forked, on a copy, as they get one. `cut_off`: whether that child has none of the job's connections and pipes to elsewhere."""
    if start_method not in (None, "fork"):
        trial = functools.partial(_on_a_copy, trial)
    with _written_over(dataset), own_children.unheard():
        return _in_child(trial, dataset, more, cut_off)


def _on_a_copy(trial, dataset, *more):
    try:
        dataset = pickle.loads(pickle.dumps(dataset))
    except Exception as error:
        return {"why": f"no copy of it can be made to be tried ({type(error).__name__}: {error})"}
    return trial(dataset, *more)


@contextlib.contextmanager
def _written_over(dataset):
    """What is written on trial to files that the data set holds open to write, the job writes over: a child has their places in common with it."""
    before = []
    for part in _parts(dataset):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if is_a(part, io.IOBase.__base__) and not part.readable():
                before.append((part.fileno(), os.lseek(part.fileno(), 0, os.SEEK_CUR)))
    try:
        yield
    finally:
        for number, offset in before:
            with contextlib.suppress(OSError):
                os.lseek(number, offset, os.SEEK_SET)


def generators(dataset):
    """What puts the generators of this process and of the data set back to how they are now."""
    process, own = _random.capture(), [(put, get()) for get, put in _found(dataset)]

    def put_back():
        _random.restore(process)
        for put, state in own:
            put(state)

    return put_back


def watched(dataset):
    """What tells whether any of these generators was drawn from since now."""
    process, own = _random.capture(), [(get, get()) for get, _ in _found(dataset)]

    def drawn():
        now = _random.capture()
        # One that was brought in meanwhile has no state before.
        if not all(alike(state, now.get(name)) for name, state in process.items()):
            return True
        return not all(alike(state, get()) for get, state in own)

    return drawn


def stir():
    """Takes the generators of this process elsewhere."""
    random.random()
    torch.rand(1, device="cpu")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.random()


def _in_child(trial, dataset, more, cut_off):
    reading, writing = os.pipe()
    try:
        child = _fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        if raised_by_signal(error):
            raise
        return {"why": f"no process can be started to try it ({error})"}
    if child == 0:
        _as_child(trial, dataset, more, writing, cut_off)
    os.close(writing)
    try:
        outcome = _until_closed(reading, _Watch(child))
    except _IsStuck:
        return {"why": "its samples waited on trial for a lock that a thread of the job, or another process, has"}
    finally:
        os.close(reading)
        exit_code = _end(child)
    if outcome is None:
        return {"why": f"its samples took more than {LIMIT_S:.0f} seconds on trial"}
    try:
        return json.loads(outcome)
    except ValueError:
        if exit_code == _WROTE_SHARED:
            return {"why": "its samples write to memory that processes share, of which their trial can have no copy"}
        return {"why": "the process that tried it died"}


def _fork():
    if sys.version_info < (3, 12):
        return os.fork()
    # Only here, as it makes Python show again what it has warned of once.
    with warnings.catch_warnings():
        # That other threads are not there in a child is what torch's workers live with, too.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _as_child(trial, dataset, more, writing, cut_off):
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # Whatever is collected here would believe itself in the training process.
        gc.disable()
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(null, stream)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor != writing:
                with contextlib.suppress(OSError):
                    _set_apart(descriptor, null, cut_off)
        torch.set_num_threads(1)
        with io.FileIO(writing, "w") as pipe:
            outcome = json.dumps(_apart(trial, dataset, *more)).encode()
            while outcome:
                outcome = outcome[pipe.write(outcome) :]
    except BaseException:
        pass
    finally:
        os._exit(0)


def _apart(trial, *more):
    try:
        _native.own_shared_memory(_WROTE_SHARED)
    except OSError as error:
        return {"why": f"memory that it shares cannot be kept from its trial ({error})"}
    return trial(*more)


def _set_apart(descriptor, null, cut_off):
    """What is read from it on trial is not missing in the job: a forked child shares the place in each file, and what comes by a pipe or a connection
    comes once. Two processes that go on from one state of an encrypted connection break it. Of what a library in C holds, nothing else shows."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        # Not where it is written to alone, of which the others who do so have to know.
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY:
            strangers.apart(descriptor)
    elif cut_off and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) and _is_connected(descriptor)):
        os.dup2(null, descriptor)


def _is_connected(descriptor):
    with socket.socket(fileno=os.dup(descriptor)) as one:
        one.getpeername()
        return True


class _IsStuck(Exception):
    pass


class _Watch:
    """Whether a child waits for a lock for good."""

    def __init__(self, child):
        self.child = child
        self.waits, self.since_s = None, time.monotonic()

    def look(self):
        """_IsStuck where it does."""
        waits = self._waits()
        if waits is None or waits != self.waits:
            self.waits, self.since_s = waits, time.monotonic()
        elif time.monotonic() - self.since_s >= _STUCK_S:
            raise _IsStuck

    def _waits(self):
        """Of each of its threads how often it has slept, where all of them sleep for a lock; None where not, or where that cannot be seen."""
        found = []
        try:
            for thread in os.listdir(f"/proc/{self.child}/task"):
                folder = f"/proc/{self.child}/task/{thread}"
                with open(f"{folder}/wchan") as file:
                    if not file.read().startswith("futex"):
                        return None
                with open(f"{folder}/status") as file:
                    found.append([line for line in file if "ctxt_switches" in line])
        except OSError:
            return None
        return found


def _until_closed(reading, watch):
    deadline, outcome = time.monotonic() + LIMIT_S, b""
    while True:
        if not wait([reading], max(0, min(1, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return None
            watch.look()
            continue
        part = os.read(reading, 65536)
        if not part:
            return outcome
        outcome += part


def _end(child):
    """Ends it, where it has not ended; its exit code, if it has one."""
    try:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return None
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None


def _found(dataset):
    """Of the generators that the data set holds itself, or its code names: what gives the state of each, and what puts it back."""
    found, known, numpy = [], set(), sys.modules.get("numpy")
    for part in itertools.chain(_parts(dataset), digests.generators(dataset, fingerprint.PARTS)):
        if id(part) in known:
            continue
        known.add(id(part))
        if is_a(part, torch.Generator):
            found.append((part.get_state, part.set_state))
        elif is_a(part, random.Random):
            found.append((part.getstate, part.setstate))
        elif numpy is not None and is_a(part, numpy.random.RandomState):
            found.append((part.get_state, part.set_state))
        elif numpy is not None and is_a(part, numpy.random.Generator):
            bits = part.bit_generator
            found.append((lambda one=bits: one.state, lambda state, one=bits: setattr(one, "state", state)))
    return found


def _parts(dataset):
    """The data set and what it holds, as far as attributes, dicts and the beginnings of lists lead."""
    known, parts = set(), [dataset]
    while parts and len(known) < _MAX_PARTS:
        part = parts.pop()
        if id(part) in known or is_a(part, type):
            continue
        known.add(id(part))
        yield part
        if is_a(part, dict):
            parts += itertools.islice(dict.values(part), _MAX_PARTS)
        elif type(part) in (list, tuple):
            parts += part[:100]
        else:
            with contextlib.suppress(AttributeError, TypeError):
                # A class may answer a look-up by name with another one.
                parts += object.__getattribute__(part, "__dict__").values()
