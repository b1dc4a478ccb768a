"""A shim and a collector of other users: where the folder of the job's socket was removed, as by who tidies up /tmp, another user
may have made it again.
"""

import os
import socket
import tempfile

import pytest

MIRA, OTHER = 4242, 4243


def _as(uid, work):
    """Has `work` done in a process of that user, whose exit code it gives."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            code = work()
        finally:
            os._exit(code)
    return pid


@pytest.fixture
def folder():
    """That all may write to."""
    with tempfile.TemporaryDirectory(prefix="stallscope-test-") as folder:
        os.chmod(folder, 0o777)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="makes processes of other users, which takes root")
@pytest.mark.parametrize(("listens", "calls", "is_sent"), [(OTHER, MIRA, False), (MIRA, MIRA, True), (0, MIRA, True), (MIRA, 0, True)])
def test_a_job_tells_nothing_to_another_user(folder, listens, calls, is_sent):
    from collector import _native

    path = os.path.join(folder, "socket")
    ready, listening = os.pipe()

    def listen():
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, 0o777)
        listener.listen()
        os.write(listening, b"x")
        connection, _ = listener.accept()
        # The end of the caller, where it says nothing.
        return 0 if connection.recv(1) else 3

    def call():
        _native.configure(path, "{}", 64)
        _native.poll()
        return 0

    listener = _as(listens, listen)
    os.read(ready, 1)
    assert os.waitpid(_as(calls, call), 0)[1] == 0
    assert os.waitstatus_to_exitcode(os.waitpid(listener, 0)[1]) == (0 if is_sent else 3)
