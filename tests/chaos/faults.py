"""What happens to us while a job trains. A fault is a function: it starts the bed as it needs it, and strikes for as long as
the bed trains. Its docstring is its line in the table; one that cannot be had here raises `NotHere` with the reason."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

FAULTS = {}


class NotHere(Exception):
    """Why a fault cannot be had on this machine."""


def fault(function):
    FAULTS[function.__name__] = function
    return function


@fault
def killed(bed):
    """SIGKILL of any process of ours, at random moments; the collectors and the tuner are started again"""
    bed.start()
    tuner = bed.tune()
    while bed.sleep(0.02, 0.25):
        ours = bed.ours() + ([("a tuner", tuner.pid)] if tuner.poll() is None else [])
        if not ours:
            continue
        kinds = sorted({what for what, _ in ours})
        kind = bed.random.choice(kinds)
        bed.signal(bed.random.choice([pid for what, pid in ours if what == kind]), signal.SIGKILL)
        # Somebody, or systemd, starts it again, at once or after a while.
        if bed.random.random() < 0.5:
            bed.sleep(0.0, 0.4)
        if kind == "the node's collector":
            bed.node.wait()
            bed.start_node()
        elif kind == "the job's collector":
            bed.run.wait()
            bed.take_over()
        elif kind == "a tuner":
            tuner.wait()
            tuner = bed.tune()


@fault
def frozen_collector(bed):
    """SIGSTOP of the job's and the node's collector, for up to 2 s at a time"""
    bed.start(STALLSCOPE_LANE_RECORDS="64")
    while bed.sleep(0.05, 0.3):
        pids = [pid for what, pid in bed.ours() if what.endswith("collector")]
        for pid in pids:
            bed.signal(pid, signal.SIGSTOP)
        bed.sleep(0.2, 2.0)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@fault
def frozen_cache(bed):
    """SIGSTOP of the pool and of fetchers, for up to 1 s at a time"""
    bed.start()
    while bed.sleep(0.1, 0.4):
        pids = [pid for what, pid in bed.ours() if what in ("the pool", "a fetcher")]
        pid = bed.random.choice(pids) if pids else None
        bed.signal(pid, signal.SIGSTOP)
        bed.sleep(0.1, 1.0)
        if pid is not None and os.path.exists(f"/proc/{pid}"):
            os.kill(pid, signal.SIGCONT)


@fault
def full_disk(bed):
    """Recording and checkpoints on a disk that is full, but for moments"""
    if not bed.is_root:
        raise NotHere("mounting a small file system takes root")
    small = bed.folder / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", small], capture_output=True).returncode:
        raise NotHere("a small file system cannot be mounted here")
    bed.clean_up.append(lambda: subprocess.run(["umount", "-l", small]))
    (small / "checkpoints").mkdir()
    (bed.folder / "checkpoints").symlink_to(small / "checkpoints")
    bed.recordings_in = small
    bed.start()
    bed.sleep(0.0, 1.0)
    fill(small / "filler")
    bed.outcome.strikes += 1
    while bed.sleep(0.3, 1.0):
        # Some space comes back, and goes.
        os.truncate(small / "filler", bed.random.randrange(1 << 20))
        bed.sleep(0.0, 0.2)
        fill(small / "filler")
        bed.outcome.strikes += 1
    (small / "filler").unlink()


def fill(path):
    with open(path, "ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


@fault
def no_memory(bed):
    """The collectors in a memory cgroup that is made smaller until they are killed for it; no more address space for the pool"""
    group = memory_group(bed)
    into = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"']
    bed.start(launcher=[*into, group], launcher_of_job=[*into, group.parent])
    # Where it is killed nobody is left to count.
    bed.surely_measured = False
    limit, used = next(names for names in MEMORY if (group / names[0]).exists())
    while bed.sleep(0.05, 0.2):
        resource_limit(bed, "the pool", resource.RLIMIT_AS, 1 << 20)
        try:
            # Not a page more than they have, and less where what they have can be taken back.
            (group / limit).write_text(str(int((group / used).read_text()) - (bed.random.randrange(2) << 16)))
            bed.outcome.strikes += 1
        except OSError:
            pass
    bed.outcome.notes.append(f"{sum(one.poll() == -signal.SIGKILL for one in (bed.run, bed.node))} collectors were killed")


def resource_limit(bed, what, limit, value):
    pid = bed.pid(what)
    if pid:
        try:
            resource.prlimit(pid, limit, (value, resource.prlimit(pid, limit)[1]))
        except ProcessLookupError:
            pass


# The limit and what is used, of both versions of cgroups.
MEMORY = [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")]


def memory_group(bed):
    for parent in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = parent / f"chaos-{os.getpid()}-{id(bed)}"
        try:
            group.mkdir()
        except OSError:
            continue
        bed.clean_up.append(lambda: remove(group))
        if any((group / limit).exists() for limit, _ in MEMORY):
            return group
    raise NotHere("no memory cgroup can be made here")


def remove(group):
    for _ in range(100):
        try:
            return group.rmdir()
        except OSError:
            time.sleep(0.05)


@fault
def no_descriptors(bed):
    """No process of ours may open anything more, for some time"""
    # The node's collector is another user's by now, whose limits root sets only with CAP_SYS_RESOURCE.
    out_of_reach = (ProcessLookupError, PermissionError)
    bed.start()
    limits = {}
    while bed.sleep(0.05, 0.3):
        for _, pid in bed.ours():
            try:
                limits.setdefault(pid, resource.prlimit(pid, resource.RLIMIT_NOFILE))
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, limits[pid][1]))
                bed.outcome.strikes += 1
            except out_of_reach:
                pass
        bed.sleep(0.1, 0.8)
        for pid, limit in limits.items():
            try:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
            except out_of_reach:
                pass


@fault
def slow_reader(bed):
    """Clients of every socket that ask for all there is and read nothing, and some that hang up in the midst of a line"""
    bed.start()
    held = []
    lines = [
        json.dumps({"stallscope": 1, "role": "kernel", "watch": bed.job or 1, "syscalls": False}).encode() + b"\n",
        b'{"stallscope":1,"role":"view"}\n' * 50,
        b'{"stallscope":1,',
        b"\0" * 5000,
    ]
    while bed.sleep(0.005, 0.05):
        sockets = [path for path in [bed.folder / "kernel.sock", *(bed.folder / "run").rglob("*")] if path.is_socket()]
        for path in sockets:
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            try:
                one.connect(str(path))
                one.send(bed.random.choice(lines))
                bed.outcome.strikes += 1
            except OSError:
                pass
            held.append(one)
        while len(held) > 200:
            held.pop(bed.random.randrange(len(held))).close()
    for one in held:
        one.close()


STORM = """
import os, sys, threading, time
open(sys.argv[1], "w").close()
while True:
    for _ in range(20):
        threading.Thread(target=os.read, args=(os.open("/dev/zero", os.O_RDONLY), 1)).start()
    for _ in range(5):
        if os.fork() == 0:
            os._exit(0)
        os.wait()
    os.closerange(3, 400)
"""


@fault
def storm(bed):
    """Short lanes, and a watched tree beside the job that starts threads and processes as fast as it can"""
    if not bed.is_root:
        raise NotHere("without the node's collector there are no events of others")
    bed.start(STALLSCOPE_LANE_RECORDS="16")
    raging = bed.spawn([sys.executable, "-c", STORM, bed.folder / "raging"])
    bed.wait_for(lambda: (bed.folder / "raging").exists())
    watch = json.dumps({"stallscope": 1, "role": "kernel", "watch": raging.pid, "syscalls": False}).encode() + b"\n"
    watchers = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for one in watchers:
        one.connect(str(bed.folder / "kernel.sock"))
        one.sendall(watch)
        bed.outcome.strikes += 1
    while bed.sleep(0.2):
        pass
    raging.kill()
    for one in watchers:
        one.close()


@fault
def other_clock(bed):
    """The job and its collector have another monotonic and boot clock than the kernel's evidence, by 11 days"""
    apart = ["unshare", "--time", "--monotonic", "1000000", "--boottime", "1000000"]
    if not bed.is_root or subprocess.run([*apart, "true"], capture_output=True).returncode:
        raise NotHere("time namespaces take root and Linux 5.6")
    # Its steps are not those that the kernel's evidence falls into.
    bed.surely_measured = False
    bed.start(launcher=[*apart, "--"])
    bed.outcome.strikes += 1
    while bed.sleep(0.2):
        pass
