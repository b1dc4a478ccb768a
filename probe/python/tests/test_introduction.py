"""A job that introduces itself to the node's service while other users call that without end."""

import socket
import subprocess
import sys

JOB = """
import json, sys, time
from stallscope._hooks import process
from stallscope import _native

process.start()
_native.introduce(sys.argv[1], "hello")
process.tell_kind("trainer")
_native.poll()
print("asked", flush=True)
sys.stdin.readline()
for _ in range(12):
    time.sleep(0.12)
    _native.poll()
"""


def test_a_place_that_is_free_for_a_moment_is_taken(tmp_path):
    path = str(tmp_path / "node.sock")
    with socket.socket(socket.AF_UNIX) as service, socket.socket(socket.AF_UNIX) as other:
        service.bind(path)
        # One may wait.
        service.listen(0)
        other.connect(path)
        environment = {"STALLSCOPE_SOCKET": str(tmp_path / "none"), "PYTHONPATH": ":".join(sys.path)}
        with subprocess.Popen(
            [sys.executable, "-c", JOB, path],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as job:
            assert job.stdout.readline() == "asked\n"
            service.accept()[0].close()
            job.communicate("\n")
        service.settimeout(0)
        connection, _ = service.accept()
        with connection:
            assert connection.recv(100) == b"hello\n"
