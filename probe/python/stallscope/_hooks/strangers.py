"""Pipes that a process forked in mid-epoch has, and the script's own workers have not.

The script opened them since its workers were made: to a process that it writes to, say, which ends when the pipe does. A worker that is added would hold
such a pipe open for as long as it lives, and a wait for its end would not end. A pair of sockets is a pipe, too, as multiprocessing.Pipe() makes them. Other
sockets it keeps: a library may use its own in a child, as torch does that to its manager of shared files.
"""

import os
import socket
import sys

_STANDARD_STREAMS = 3
_PIPE, _SOCKET = "pipe:", "socket:"
# Python's own helpers, which a child may need as its parent does: the module, its object, the name of the descriptor.
_HELPERS = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_fd"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_alive_fd"),
)


def opened_since(pid, ours):
    """The descriptors of pipes that this process has and its worker `pid` has not, but for `ours`."""
    try:
        theirs = set(_pipes(pid).values())
    except OSError:
        # Not to be seen, or gone.
        return []
    kept = {one.fileno() for one in ours} | set(_helpers())
    mine = {one: pipe for one, pipe in _pipes("self").items() if pipe not in theirs and one not in kept and one >= _STANDARD_STREAMS}
    return [one for one, pipe in mine.items() if pipe.startswith(_PIPE) or _is_of_a_pair(one)]


def let_go(descriptors):
    """In the child: puts nothing in their place, as whatever holds them there may close them yet."""
    if not descriptors:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in descriptors:
        os.dup2(nothing, one, inheritable=False)
    os.close(nothing)


def _is_of_a_pair(descriptor):
    """Whether neither of a socket's ends has a name by which it was connected to."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            return one.family == socket.AF_UNIX and not one.getsockname() and not one.getpeername()
    except OSError:
        # Closed meanwhile, or connected to nothing.
        return False


def _pipes(process):
    """Descriptor -> what tells this pipe or socket from any other, of a process."""
    found = {}
    folder = f"/proc/{process}/fd"
    for name in os.listdir(folder):
        try:
            link = os.readlink(f"{folder}/{name}")
        except OSError:
            # It was closed meanwhile.
            continue
        if link.startswith((_PIPE, _SOCKET)):
            found[int(name)] = link
    return found


def _helpers():
    for module, name, attribute in _HELPERS:
        descriptor = getattr(getattr(sys.modules.get(module), name, None), attribute, None)
        if descriptor is not None:
            yield descriptor
