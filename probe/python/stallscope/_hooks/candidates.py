"""A worker that is about to be added: started like torch's own, and heard of when it is ready, or why it is not."""

import contextlib
import importlib
import inspect
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from multiprocessing.reduction import ForkingPickler

from . import strangers

# What may be large: the data set, and functions with what they hold.
_LARGE = ("dataset", "collate_fn", "init_fn")
# What a candidate says first, and as its script's own function begins; all else it says is a sentence.
_PID, _BEGINS = b"\0", b"\1"
_numbers = itertools.count(1_000_001)
# How long a fork's child takes at most until it runs Python.
_UNKNOWN_S = 5


class Leave:
    """What a worker gets to end in good order: its loop has no way out in the midst of an epoch."""

    def __reduce__(self):
        return sys.exit, (0,)


class Candidate:
    def __init__(self, process, queue, reports):
        self.process = process
        self.queue = queue
        self.reports = reports
        # Whether code of the script's may run in it.
        self.has_begun = False

    def says(self):
        """None: nothing yet; "": it is ready; else a sentence."""
        alive = self.process.is_alive()
        try:
            while self.reports.poll():
                message = self._heard()
                if not message.startswith((_PID, _BEGINS)):
                    return message.decode("utf-8", "replace")
        except (EOFError, OSError):
            alive = alive and not self.process.join(0.1) and self.process.is_alive()
        return None if alive else f"A new worker ended while it started (exit code {self.process.exitcode})."

    def send_away(self):
        """It is not wanted any more. Where code of the script's may run in it, it leaves by itself behind that: who is killed gives no lock back,
        and the script's own workers would wait for it."""
        try:
            while self.reports.poll():
                self._heard()
        except (EOFError, OSError):
            # It has ended, or is about to.
            self.has_begun = True
        if self.has_begun:
            self.queue.put(Leave())
            self.reports.close()
            return
        self.reports.close()
        # Not by a signal that the script may have a handler for, which a fork has inherited.
        self.process.kill()

    def _heard(self):
        message = self.reports.recv_bytes()
        self.has_begun |= not message.startswith(_PID)
        return message


def start(candidates, context, workers_module, iterator, number, total):
    """Starts worker `number` of `total`, adds it to `candidates`, and does not wait for it. An interrupt in the midst of it
    leaves nobody behind."""
    queue = context.Queue()
    # As torch has it: a queue whose reader is gone must not hold the process up.
    queue.cancel_join_thread()
    _start_sending(queue)
    reports, teller = context.Pipe(duplex=False)
    values = _values(iterator, queue, number, total)
    method = context.get_start_method()
    parcel = None if method == "fork" else _pack(values)
    # A server forks for us, and ends with us.
    parent = None if method == "forkserver" else os.getpid()
    # A new interpreter takes seconds until it reads what it is given, and a pipe holds little: what may be large is
    # sent by a thread.
    source, sink = context.Pipe(duplex=False) if parcel else (None, None)
    ours = [queue._reader, queue._writer, reports, teller]
    strange = strangers.opened_since(iterator._workers[0].pid, ours) if method == "fork" else ((), ())
    given = (workers_module.__name__, values, teller, source, parent, strange)
    with _numbered_apart():
        # With the arguments that torch gives: a context of the script's may take no others.
        process = context.Process(target=_enter, args=given)
    process.daemon = True
    candidate = Candidate(process, queue, reports)
    try:
        candidate.process.start()
        candidates.append(candidate)
        if parcel:
            threading.Thread(target=_send, args=(sink, parcel), name="stallscope", daemon=True).start()
    except BaseException:
        teller.close()
        if candidate.process.pid is None:
            _end_unknown(reports)
        elif candidate not in candidates:
            candidate.process.kill()
            candidate.process.join()
        raise
    finally:
        teller.close()
        if parcel:
            source.close()


def _start_sending(queue):
    """Starts the thread that its first use would start: where there may be no more threads, that would end the job."""
    start_thread = getattr(queue, "_start_thread", None)
    if start_thread is not None:
        start_thread()


@contextlib.contextmanager
def _numbered_apart():
    """Processes that are made within take none of the numbers that Python gives, one after the other, to those of the script: they stand in their names, and some
    scripts go by them."""
    numbers = multiprocessing.process._process_counter
    multiprocessing.process._process_counter = _numbers
    try:
        yield
    finally:
        multiprocessing.process._process_counter = numbers


def _end_unknown(reports):
    """Ends a process that an interrupt has left without a name: Python raises it as soon as a fork is over, before the
    child's number is kept. The child reports it; where there is none the pipe ends, as no other process has its other end."""
    try:
        if reports.poll(_UNKNOWN_S):
            pid = int(reports.recv_bytes().removeprefix(_PID))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except (EOFError, OSError, ValueError):
        pass
    finally:
        reports.close()


def unknown_parameters(workers_module):
    """What `workers_module._worker_loop` takes that we know nothing of."""
    known = {"dataset_holder", *_values(_Anything(), None, 0, 0)}
    return [name for name in inspect.signature(workers_module._worker_loop).parameters if name not in known]


class _Anything:
    def __getattr__(self, name):
        return None


def _values(iterator, queue, number, total):
    """What worker `number` of `total` is given, by the names in its loop."""
    return {
        "dataset_kind": iterator._dataset_kind,
        "dataset": iterator._dataset,
        "index_queue": queue,
        "data_queue": iterator._worker_result_queue,
        "done_event": iterator._workers_done_event,
        "auto_collation": iterator._auto_collation,
        "collate_fn": iterator._collate_fn,
        "drop_last": iterator._drop_last,
        "base_seed": iterator._base_seed,
        "init_fn": iterator._worker_init_fn,
        "worker_id": number,
        "num_workers": total,
        "persistent_workers": iterator._persistent_workers,
        "shared_seed": iterator._shared_seed,
    }


def _pack(values):
    """Takes what may be large out of `values`, pickled; None where it must be handed over while a process starts, as
    locks must."""
    large = {name: values[name] for name in _LARGE}
    try:
        parcel = ForkingPickler.dumps(large)
    except RuntimeError:
        return None
    for name in _LARGE:
        del values[name]
    return parcel


def _send(sink, parcel):
    try:
        sink.send_bytes(parcel)
    except OSError:
        # It was dismissed, or died.
        pass
    finally:
        sink.close()


def _enter(module_name, values, teller, source, parent, strange):
    """In the new process, a child of `parent`, None where that is not to be looked at; it keeps nothing that is `strange` to it."""
    strangers.let_go(*strange)
    _report(teller, _PID + str(os.getpid()).encode())
    if source is not None:
        with source:
            values.update(pickle.loads(source.recv_bytes()))
    # By its name, as torch does: that is where it is observed.
    loop = importlib.import_module(module_name)._worker_loop
    # Taken out, as the process keeps its arguments, and a worker drops its data set when it ends.
    holder = [values.pop("dataset")]
    init = _Entry(values.pop("init_fn"), teller, parent)
    names = list(inspect.signature(loop).parameters)
    given = {"init_fn": init, "dataset_holder": holder}
    if "dataset" in names:
        given["dataset"] = holder.pop()
    loop(*({**values, **given}[name] for name in names))


def _report(reports, message):
    try:
        reports.send_bytes(message)
    except OSError:
        # It was dismissed, or the trainer is gone: nothing for the job's log.
        os._exit(1)


class _Entry:
    """The `worker_init_fn` of a candidate: runs the script's own, and reports that the worker is ready, or why not."""

    def __init__(self, init, reports, parent):
        self.init = init
        self.reports = reports
        self.parent = parent

    def __call__(self, worker_id):
        failure = ""
        _report(self.reports, _BEGINS)
        try:
            if self.init is not None:
                self.init(worker_id)
        except Exception as error:
            failure = f"worker_init_fn fails in worker {worker_id}: {type(error).__name__}: {error}."
        # torch's watchdog, which begins after this, takes the process that is our parent by then for the trainer.
        if self.parent is not None and os.getppid() != self.parent:
            os._exit(1)
        _report(self.reports, failure.encode("utf-8", "replace")[:1000])
        self.reports.close()
        if failure:
            sys.exit(0)
