"""Checkpoint calls: how long the caller was held, and how much was written.

A call inside another one (safetensors' save_model, DCP's own torch.save in whatever thread) is a part of it, and so is what
a framework does around the calls of one checkpoint: it gathers the state, and removes older ones.
"""

import os
import sys
import threading
from concurrent.futures import Future

from stallscope import _native

from . import process
from .knobs import raised_by_signal
from .patch import UnknownShape, attribute, replace

_here = threading.local()
_dcp_lock = threading.Lock()
_dcp_saves = 0


def hook_torch_save(module):
    """`module`: torch.serialization."""
    replace(module, "save", lambda original: _timed(original, "torch.save", "persist", 1, "f"))


def hook_safetensors(module):
    """`module`: safetensors.torch."""
    replace(module, "save_file", lambda original: _timed(original, "safetensors", "persist", 1, "filename"))


def hook_dcp(module):
    """`module`: torch.distributed.checkpoint.state_dict_saver; older ones have less."""
    found = [name for name in ("save", "save_state_dict", "async_save") if hasattr(module, name)]
    if not found:
        raise UnknownShape("it has no save function")
    for name in found:
        if name == "async_save":
            replace(module, name, lambda original: _timed(original, "dcp.async_save", "snapshot", None, None))
        else:
            replace(module, name, lambda original: _timed(original, "dcp.save", "persist", None, "checkpoint_id"))


def hook_transformers(module):
    """`module`: transformers.trainer."""
    replace(attribute(module, "Trainer"), "_save_checkpoint", _whole)


def hook_lightning(module):
    """`module`: lightning.pytorch.trainer.trainer."""
    replace(attribute(module, "Trainer"), "save_checkpoint", _whole)


def hook_accelerate(module):
    """`module`: accelerate.accelerator."""
    replace(attribute(module, "Accelerator"), "save_state", _whole)


def _whole(original):
    """`original`, recorded as one save with all that is saved in it; not at all where nothing is, as by other ranks."""

    def save(*args, **kwargs):
        if not _native.enabled() or getattr(_here, "parts", None) is not None:
            return original(*args, **kwargs)
        _here.parts = parts = []
        began_ns = _native.now()
        try:
            return original(*args, **kwargs)
        finally:
            ended_ns = _native.now()
            _here.parts = None
            if parts:
                saver, stage, _ = parts[0]
                _record(saver, stage, began_ns, ended_ns, sum(written for _, _, written in parts))

    return save


def _timed(original, saver, stage, position, keyword):
    """`original`, recorded. The target is its argument `position` or `keyword`."""
    distributed = saver in ("dcp.save", "dcp.async_save")

    def save(*args, **kwargs):
        global _dcp_saves
        if not _native.enabled() or getattr(_here, "saving", False):
            return original(*args, **kwargs)
        if _dcp_saves and not distributed and _is_dcp(sys._getframe(1)):
            return original(*args, **kwargs)
        target = kwargs.get(keyword)
        if target is None and position is not None and len(args) > position:
            target = args[position]
        _here.saving = True
        if saver == "dcp.save":
            with _dcp_lock:
                _dcp_saves += 1
        written = _written(target)
        began_ns = _native.now()
        try:
            result = original(*args, **kwargs)
        finally:
            ended_ns = _native.now()
            _here.saving = False
            if saver == "dcp.save":
                with _dcp_lock:
                    _dcp_saves -= 1
            written = _written(target, since=written)
            parts = getattr(_here, "parts", None)
            if parts is None:
                _record(saver, stage, began_ns, ended_ns, written)
            else:
                parts.append((saver, stage, written))
        if saver == "dcp.async_save":
            _watch_future(result)
        return result

    return save


def _is_dcp(frame):
    """DCP's own threads call torch.save too."""
    return str(frame.f_globals.get("__name__")).startswith("torch.distributed.checkpoint.")


def _record(saver, stage, began_ns, ended_ns, written):
    # A child that was forked to save has no lane before its first record.
    _native.poll()
    _native.checkpoint(
        saver=saver, stage=stage, caller=_caller(), began_ns=began_ns, ended_ns=ended_ns, bytes=written
    )


def _caller():
    if threading.current_thread() is not threading.main_thread():
        return "thread"
    return "forked" if _native.forked() else "main_thread"


def _watch_future(result):
    """A caller who waits for an asynchronous save waits for the checkpoint.

    What is set on `future` goes when it is done: until then its executor holds it anyway, so that it lives no longer.
    """
    future = getattr(result, "upload_completion", result)
    if not isinstance(future, Future):
        return
    wait = future.result

    def timed(*args, **kwargs):
        if future.done():
            return wait(*args, **kwargs)
        began_ns = _native.now()
        try:
            return wait(*args, **kwargs)
        finally:
            if getattr(_here, "parts", None) is None:
                _record("dcp.async_save", "persist", began_ns, _native.now(), 0)

    future.result = timed
    future.add_done_callback(lambda done: vars(done).pop("result", None))


def _written(target, since=0):
    """Bytes at `target`: a file's size, a folder's files of this rank, or how far an open file has got. `since`:
    the same before the save, which counts for open files alone, as the others are written anew."""
    try:
        if target is None:
            return 0
        if isinstance(target, (str, os.PathLike)):
            return _files_bytes(os.fspath(target))
        return max(0, target.tell() - since)
    except Exception as error:
        if raised_by_signal(error):
            raise
        return 0


def _files_bytes(path):
    if not os.path.isdir(path):
        return os.path.getsize(path)
    mine = f"__{process.ranks.current()['rank']}_"
    with os.scandir(path) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.name.startswith(mine))
