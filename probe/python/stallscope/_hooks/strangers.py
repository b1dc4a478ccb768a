"""What a process forked in mid-epoch has open, and the script's own workers have not.

The script opened it since its workers were made, and may wait for its end: a process that it writes to ends when the pipe does, a peer when the connection does, and
a lock on a file ends when all have closed it. A worker that is added would hold it open for as long as it lives. So pipes and connections it lets go of, and files it
opens for itself. A pair of sockets is a pipe, too, as multiprocessing.Pipe() makes them. Sockets of the machine's own that have a name it keeps: a library may use its own
in a child, as torch does that to its manager of shared files.
"""

import fcntl
import os
import socket
import stat
import sys

from stallscope import _native

_STANDARD_STREAMS = 3
_PIPE, _SOCKET = "pipe:", "socket:"
# Memory that processes share, which they map: torch's tensors are written through such a descriptor.
MEMORY = ("/dev/shm/", "/memfd:")
# Python's own helpers, which a child may need as its parent does: the module, its object, the name of the descriptor.
_HELPERS = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_fd"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_alive_fd"),
)
# What is not asked for again when a file is opened once more.
_AT_FIRST = os.O_CREAT | os.O_EXCL | os.O_TRUNC


def opened_since(pid, ours):
    """The descriptors that this process has and its worker `pid` has not, but for `ours`: of pipes and connections, and of files."""
    try:
        theirs = set(_open(pid).values())
    except OSError:
        # Not to be seen, or gone.
        return [], []
    kept = {one.fileno() for one in ours} | set(_helpers()) | set(range(_STANDARD_STREAMS))
    mine = {one: link for one, link in _open("self").items() if one not in kept}
    ends = {one: link for one, link in mine.items() if link.startswith((_PIPE, _SOCKET)) and link not in theirs}
    ends = [one for one, link in ends.items() if link.startswith(_PIPE) or _ends_with_us(one)]
    return ends, [one for one, link in mine.items() if link.startswith("/") and _is_own_file(one, link, pid)]


def let_go(ends, files):
    """In the child: puts nothing in the place of the `ends`, as whatever holds them there may close them yet, and reads `files` from places of its own."""
    if not (ends or files):
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in files:
        try:
            apart(one)
        except OSError:
            # It may not be opened any more.
            os.dup2(nothing, one, inheritable=False)
    for one in ends:
        os.dup2(nothing, one, inheritable=False)
    os.close(nothing)


def apart(descriptor):
    """In a forked child: from here on it is another one of the same file, at the same place, without the locks of the first."""
    own = os.open(f"/proc/self/fd/{descriptor}", fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~_AT_FIRST)
    try:
        os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own, descriptor, inheritable=os.get_inheritable(descriptor))
    finally:
        os.close(own)


def _is_own_file(descriptor, link, pid):
    try:
        if link.startswith(MEMORY) or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        same = _native.is_one_open_file(descriptor, pid, descriptor)
        if same is None:
            # The kernel does not say.
            same = os.readlink(f"/proc/{pid}/fd/{descriptor}") == link
        return not same
    except FileNotFoundError:
        return True
    except OSError:
        # It was closed meanwhile.
        return False


def _ends_with_us(descriptor):
    """Whether a socket is one whose other end waits for this one's: over a network, or of a pair, neither of whose ends has a name by which it was connected to."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                return True
            return one.family == socket.AF_UNIX and not one.getsockname() and not one.getpeername()
    except OSError:
        # Closed meanwhile, or connected to nothing.
        return False


def _open(process):
    """Descriptor -> what tells a pipe or socket from any other, and the path of a file, of a process."""
    found = {}
    folder = f"/proc/{process}/fd"
    for name in os.listdir(folder):
        try:
            found[int(name)] = os.readlink(f"{folder}/{name}")
        except OSError:
            # It was closed meanwhile.
            continue
    return found


def _helpers():
    for module, name, attribute in _HELPERS:
        descriptor = getattr(getattr(sys.modules.get(module), name, None), attribute, None)
        if descriptor is not None:
            yield descriptor
