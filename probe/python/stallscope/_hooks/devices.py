"""Devices that a data set's workers have open: a GPU, a camera, a simulator's.

Of a device there is so much and no more, and training may need what is left: each process that uses a GPU takes hundreds of MB of its memory. A script has as
many workers as it has devices for; so none is added to them.
"""

import os
import stat

_WHY = "resize: unavailable: the loader's workers use the device {}, of which there may be no more for another one."
# By their major numbers: memory (/dev/null, /dev/urandom) and terminals.
_HARMLESS = frozenset((1, 4, 5, *range(136, 144)))
_FORKED = "multiprocessing.popen_fork"


def why(iterator):
    """Why no worker is added to those of this iterator, a sentence; "" where nothing shows."""
    for worker in iterator._workers:
        # What training had open is open in forked workers as well, which need not use it.
        inherited = _open("self") if type(worker._popen).__module__ == _FORKED else {}
        own = _open(worker.pid).items() - inherited.items()
        if own:
            descriptor, _ = min(own)
            return _WHY.format(_path(worker.pid, descriptor))
    return ""


def _open(process):
    """The devices that it has open, as programs talk to them: descriptor -> number."""
    found, folder = {}, f"/proc/{process}/fd"
    for name in _listed(folder):
        try:
            described = os.stat(f"{folder}/{name}")
        except OSError:
            # It was closed meanwhile.
            continue
        # Those of blocks, as disks are, are read by as many as like to.
        if stat.S_ISCHR(described.st_mode) and _matters(described.st_rdev):
            found[int(name)] = described.st_rdev
    return found


def _matters(device):
    return os.major(device) not in _HARMLESS


def _listed(folder):
    try:
        return os.listdir(folder)
    except OSError:
        # The process has ended, or may not be looked into.
        return ()


def _path(process, descriptor):
    try:
        return os.readlink(f"/proc/{process}/fd/{descriptor}")
    except OSError:
        return "that it has opened"
