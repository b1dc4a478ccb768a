"""How long the device ran dry while the trainer waited for a batch.

An event at the entry of a wait is complete when the device has done all that was asked of it before; one at its
exit cannot complete before the exit. The time between them is what the device had no work for. Both are read when
they are complete, some steps later, so that nothing waits for the device.
"""

import importlib
import os
import sys
import threading

from stallscope import _native

from . import process
from .knobs import raised_by_signal

# Waits whose events are not complete yet; beyond it the device is that far behind that the oldest says nothing new.
_MAX_PENDING = 64

_watcher = None


class Watcher:
    """Measures through `device`, which has `record() -> event`, `query(event) -> bool`, `elapsed_ms(first, second)`
    and, optionally, `recycle(event)`, and `ready() -> bool`: whether it has been used at all.

    Only in the thread that trains first, as streams and events belong to threads; `training()` says whether it does.
    """

    def __init__(self, device, training):
        self.device = device
        self.training = training
        self.thread = None
        self.entered = None
        self.entered_ns = 0
        self.pending = []

    def enter(self):
        if self.thread is None and self.training():
            self.thread = threading.get_ident()
        if self.thread != threading.get_ident():
            return
        self.entered = None
        if not self.device.ready():
            return
        self.entered_ns = _native.now()
        self.entered = self.device.record()

    def leave(self, time_ns):
        if self.entered is None or self.thread != threading.get_ident():
            return
        entered, self.entered = self.entered, None
        if not self.device.ready():
            return
        left = self.device.record()
        # A thread that loses its CPU here records late: what the device was idle for since is not the wait's.
        late_ns = _native.now() - time_ns
        self.pending.append((entered, left, late_ns, self.entered_ns, time_ns))
        self.collect()

    def collect(self):
        """Tells of the waits whose events are complete."""
        while self.pending:
            first, last, late_ns, entered_ns, left_ns = self.pending[0]
            if not self.device.query(last):
                break
            self.pending.pop(0)
            idle_ns = int(self.device.elapsed_ms(first, last) * 1e6) - late_ns
            idle_ns = max(0, min(idle_ns, left_ns - entered_ns))
            _native.device_idle(idle_ns=idle_ns, wait_exit_ns=left_ns)
            self.device.recycle(first)
            self.device.recycle(last)
        while len(self.pending) > _MAX_PENDING:
            first, last, *_ = self.pending.pop(0)
            self.device.recycle(first)
            self.device.recycle(last)


class CudaDevice:
    """CUDA and ROCm, through events on the current stream."""

    def __init__(self, cuda):
        self.cuda = cuda
        self.free = []

    def ready(self):
        # Asking for an event would create a context: only the job may do that.
        return self.cuda.is_initialized() and not self.cuda.is_current_stream_capturing()

    def record(self):
        event = self.free.pop() if self.free else self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def query(self, event):
        return event.query()

    def elapsed_ms(self, first, last):
        return first.elapsed_time(last)

    def recycle(self, event):
        self.free.append(event)


def register(device):
    """Watches `device`, in place of any other; None: no device."""
    global _watcher
    _watcher = None if device is None else Watcher(device, sys.modules["torch"].is_grad_enabled)
    _native.watch_device(_watcher)


def look():
    """Finds the device, once a process: the one named by STALLSCOPE_DEVICE (module:function), else CUDA."""
    global _watcher
    if _watcher is not None:
        return
    named = os.environ.get("STALLSCOPE_DEVICE")
    torch = sys.modules.get("torch")
    try:
        if named:
            module, function = named.split(":")
            register(getattr(importlib.import_module(module), function)())
        elif torch.version.cuda or torch.version.hip:
            register(CudaDevice(torch.cuda))
    except Exception as error:
        if raised_by_signal(error):
            raise
        process.unavailable(f"The device cannot be watched: {type(error).__name__}: {error}.")
