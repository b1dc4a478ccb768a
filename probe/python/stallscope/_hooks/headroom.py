"""How many batches, and how many workers, fit on this machine and in this process."""

import os
import sys

from stallscope import _native

from . import kernel_text
from .outline import own_attributes

# A batch is walked this far at most.
_MAX_PARTS = 10_000
_MAX_NESTING = 32
_CGROUPS = "/sys/fs/cgroup"
# The users of a process that is in no namespace of users.
_ALL_USERS = ["0", "0", "4294967295"]
# CAP_SYS_ADMIN and CAP_SYS_RESOURCE.
_UNLIMITED = 1 << 21 | 1 << 24
# So many tasks are enough for any number of workers.
_FEW_TASKS = 10_000


def weigh(batch):
    """`(bytes, tensors)` in `batch`, as far as can be seen without running code of the job's."""
    torch = sys.modules["torch"]
    numpy = sys.modules.get("numpy")
    array = numpy.ndarray if numpy is not None else ()
    tensors, size, parts = {}, 0, [(batch, 0)]
    # Neither a mode nor a subclass of the job's is to see this.
    with torch._C.DisableTorchFunction():
        for _ in range(_MAX_PARTS):
            if not parts:
                break
            part, nesting = parts.pop()
            kind = type(part)
            if issubclass(kind, torch.Tensor):
                tensors[id(part)] = part.element_size() * part.numel()
            elif issubclass(kind, array):
                size += part.nbytes
            elif issubclass(kind, (bytes, bytearray, str)):
                size += len(part)
            elif nesting < _MAX_NESTING:
                parts += [(inner, nesting + 1) for inner in _inside(part)]
    return size + sum(tensors.values()), len(tensors)


def _inside(part):
    kind = type(part)
    if issubclass(kind, dict):
        return dict.values(part)
    if issubclass(kind, (list, tuple)):
        base = list if issubclass(kind, list) else tuple
        return base.__getitem__(part, slice(0, _MAX_PARTS))
    return own_attributes(part).values() if not issubclass(kind, type) else ()


def for_batches(batch):
    """How many batches like `batch` may be under way, and a sentence that says why not more. Half of what is free is
    left to others, and a batch may be twice as large as this one."""
    size, tensors = weigh(batch)
    limits = []
    if size:
        each = _native.bytes_in_words(size)
        for free, where in ((_shared_free(), "in /dev/shm"), (memory_free(), "of memory")):
            limits.append((free // (4 * size), f"a batch takes {each}, and {_native.bytes_in_words(free)} {where} are free"))
    if tensors and sys.modules["torch.multiprocessing"].get_sharing_strategy() == "file_descriptor":
        free = _descriptors_free()
        limits.append((free // (2 * tensors), f"a batch takes {tensors} descriptors, and {free} are free (ulimit -n)"))
    return min(limits, default=(sys.maxsize, ""))


def for_workers(pid):
    """How many workers like process `pid` may be added, and a sentence that says why not more."""
    limits = [(_descriptors_free() // 16, "a worker takes some descriptors (ulimit -n)")]
    # And a thread of training's, which sends it what it is to make.
    tasks = _threads(pid) + 1
    for free, where in tasks_free():
        limits.append((free // (2 * tasks), f"a worker takes {tasks} processes and threads, and {free} are free ({where})"))
    size = _private(pid)
    if size:
        free = memory_free()
        why = f"a worker takes {_native.bytes_in_words(size)} of its own, and {_native.bytes_in_words(free)} of memory are free"
        limits.append((free // (2 * size), why))
    return min(limits)


def tasks_free():
    """How many more processes and threads there may be, by each limit: of the job's group, and of its user."""
    for folder in _folders("pids"):
        for limit in _numbers(folder, ("pids.max",)):
            for used in _numbers(folder, ("pids.current",)):
                yield max(0, limit - used), "pids.max of the job's cgroup"
    limit = _limit("Max processes")
    if limit is not None and not _is_unlimited():
        # To count the user's own takes a while where there are many.
        used = _tasks_of_all()
        if limit - used < _FEW_TASKS:
            used = sum(_tasks_of(os.getuid()))
        yield max(0, limit - used), "ulimit -u"


def _is_unlimited():
    """Whether the kernel does not hold this process to its user's limit: as the machine's root, or one with either of two of its rights."""
    if kernel_text.of("/proc/self/uid_map").split() != _ALL_USERS:
        return False
    status = kernel_text.of("/proc/self/status").splitlines()
    rights = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return os.getuid() == 0 or bool(rights & _UNLIMITED)


def _tasks_of_all():
    return int(kernel_text.of("/proc/loadavg").split()[3].split("/")[1])


def _tasks_of(user):
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    yield _threads(name)
            except OSError:
                # It has ended.
                continue


def _threads(pid):
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:
        return 1


def memory_free():
    """Bytes that can be had without anybody giving some back: of the machine's, and of the job's group's."""
    table = dict(line.split(":", 1) for line in kernel_text.of("/proc/meminfo").splitlines())
    free = int(table["MemAvailable"].split()[0]) * 1024
    for folder, limits, used in _groups():
        try:
            pages = dict(line.split() for line in kernel_text.of(os.path.join(folder, "memory.stat")).splitlines())
            # Files in memory are given up for others. What the group's own groups have counts in both versions.
            files = sum(int(pages.get(f"total_{kind}", pages[kind])) for kind in ("inactive_file", "active_file"))
            used_bytes = _number(folder, used) - files
        except (OSError, ValueError, KeyError):
            continue
        free = min([free, *(limit_bytes - used_bytes for limit_bytes in _numbers(folder, limits))])
    return max(0, free)


def group_limits():
    """Bytes that each of the job's memory groups may use, where they say."""
    for folder, limits, _ in _groups():
        yield from _numbers(folder, limits[:1])


def _groups():
    """The folders of this process's memory groups, from its own up, and what has limits and use there. Beyond the second limit the kernel holds up
    processes that ask for more, which comes before the first."""
    for folder in _folders("memory"):
        if os.path.exists(os.path.join(folder, "memory.limit_in_bytes")):
            yield folder, ("memory.limit_in_bytes",), "memory.usage_in_bytes"
        else:
            yield folder, ("memory.max", "memory.high"), "memory.current"


def _folders(controller):
    """Those of this process's groups that may have this controller, from its own up, in either version."""
    mine = [line.strip().split(":", 2) for line in kernel_text.of("/proc/self/cgroup").splitlines()]
    for _, controllers, path in mine:
        if controllers == "":
            root = _CGROUPS
        elif controller in controllers.split(","):
            root = f"{_CGROUPS}/{controller}"
        else:
            continue
        # A container may see its own group as the root while its path is the host's: what is not there is passed over.
        folder = os.path.normpath(root + path)
        while folder.startswith(root):
            yield folder
            folder = os.path.dirname(folder)


def _numbers(folder, names):
    """Those of these that are limits."""
    for name in names:
        try:
            yield _number(folder, name)
        except (OSError, ValueError):
            continue


def _number(folder, name):
    return int(kernel_text.of(os.path.join(folder, name)))


def _shared_free():
    free = os.statvfs("/dev/shm")
    return free.f_bavail * free.f_frsize


def _descriptors_free():
    limit = _limit("Max open files")
    return sys.maxsize if limit is None else max(0, limit - len(os.listdir("/proc/self/fd")))


def _limit(name):
    """The soft limit of this process that is called `name`; None where there is none. Python's module for that is called `resource`, as a script's own
    may be, whose folder comes first: that one would run here."""
    line = next((line for line in kernel_text.of("/proc/self/limits").splitlines() if line.startswith(name)), name + " unlimited")
    soft = line[len(name) :].split()[0]
    return None if soft == "unlimited" else int(soft)


def _private(pid):
    try:
        lines = kernel_text.of(f"/proc/{pid}/smaps_rollup").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024
    except (OSError, ValueError):
        return 0
