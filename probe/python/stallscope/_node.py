"""The shim in a job that nobody launched with `stallscope run`: whether it comes is the node's policy's to say.

The first process of a job that imports torch asks the node's service. What it then has in its environment, its children inherit,
and none of them asks again. The service has a collector started once a process of the job trains.
"""

import json
import os
import time

from . import _native, _runtime

# How much longer `import torch` may take because of a service that does not answer.
_ANSWER_WITHIN_S = 0.25
# Between tries to get into its queue.
_FULL_S = 0.01
_MOST_BYTES = 4096
# What the node's policy calls the job by: the root of its process tree, and when that began.
_JOB = "STALLSCOPE_NODE_JOB"
# Set by the kernel for programs that gained privileges when they were executed (getauxval(3)).
_AT_SECURE = 23


def come(service):
    """`service`: where the node's service listens. Sets the hooks if the job is one of the policy's."""
    if not os.environ.get("STALLSCOPE_SOCKET"):
        if _is_privileged():
            return
        pid, start_ticks = os.getpid(), _start_ticks()
        answer = _ask(service, _hello(pid, start_ticks))
        if answer.get("comes") is not True:
            return
        key = f"node-{pid}-{start_ticks}"
        os.environ["STALLSCOPE_SOCKET"] = os.path.join(_runtime.folder(), "jobs", key, "sock")
        os.environ[_JOB] = f"{pid} {start_ticks}"
        first_cache_bytes = answer.get("first_cache_bytes")
        if type(first_cache_bytes) is int and first_cache_bytes > 0:
            os.environ["STALLSCOPE_CACHE_BYTES"] = str(first_cache_bytes)
    from ._hooks import install

    install()


def introduction():
    """Where and how this process says that it trains, for its job to have a collector; None in a job of `stallscope run`."""
    job = os.environ.get(_JOB)
    if not job:
        return None
    pid, start_ticks = map(int, job.split())
    kernel = os.environ.get("STALLSCOPE_KERNEL_SOCKET") or "/run/stallscope/kernel.sock"
    return os.path.join(os.path.dirname(kernel), "node.sock"), json.dumps(_hello(pid, start_ticks, trains=True))


def _hello(pid, start_ticks, trains=False):
    label = os.environ.get("STALLSCOPE_LABEL", "")
    return {
        "stallscope": _native.PROTOCOL_VERSION,
        "role": "shim",
        "pid": pid,
        "start_ticks": start_ticks,
        "label": label.encode("utf-8", "replace").decode(),
        "trains": trains,
    }


def _ask(service, hello):
    """The service's answer; nothing where it gives none, or another one than it should."""
    # `socket` may be a module of the job's own.
    import _socket

    until = time.monotonic() + _ANSWER_WITHIN_S
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(_ANSWER_WITHIN_S)
        _connect(connection, service, until)
        connection.sendall(json.dumps(hello).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n") and len(line) < _MOST_BYTES:
            connection.settimeout(max(until - time.monotonic(), 0.001))
            piece = connection.recv(_MOST_BYTES)
            if not piece or time.monotonic() > until:
                return {}
            line += piece
        answer = json.loads(line)
    except (OSError, ValueError):
        return {}
    finally:
        connection.close()
    answer = answer.get("shim") if isinstance(answer, dict) else None
    return answer if isinstance(answer, dict) else {}


def _connect(connection, service, until):
    """Tries again while others fill the service's queue."""
    while True:
        try:
            return connection.connect(service)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(_FULL_S)


def _start_ticks():
    with open("/proc/self/stat", "rb") as file:
        # The second field, the program's name, may hold anything.
        return int(file.read().rpartition(b")")[2].split()[19])


def _is_privileged():
    """Whether this program gained rights that who started it has not; also where that cannot be seen."""
    try:
        with open("/proc/self/auxv", "rb") as file:
            words = memoryview(file.read()).cast("N")
    except OSError:
        return True
    return dict(zip(words[::2], words[1::2])).get(_AT_SECURE, 1) != 0
