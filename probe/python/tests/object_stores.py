"""A server that speaks as S3 does, and a proxy before it that answers late, wrong or not at all."""

import http.client
import itertools
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BUCKETS = itertools.count()

SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class Server:
    """The server, in a process of its own."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.port = int(self._process.stdout.readline())

    def put(self, path, data=b""):
        self._ask("PUT", path, data)

    def delete(self, path):
        self._ask("DELETE", path)

    def upload(self, pack, bucket, folder):
        """All of a pack's files, its snapshot last."""
        try:
            self.put(bucket)
        except urllib.error.HTTPError as error:
            # It is there.
            assert error.code == 409
        for file in sorted(Path(pack).iterdir(), key=lambda file: file.name == "snapshot"):
            if file.name != "lock":
                self.put(f"{bucket}/{folder}/{file.name}", file.read_bytes())

    def _ask(self, method, path, data=None):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        # A form would be taken apart. Everybody may read it, as some tests do without a signature.
        headers = {"Content-Type": "application/octet-stream", "x-amz-acl": "public-read"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", data, headers, method=method)
        with opener.open(request) as answer:
            answer.read()

    def close(self):
        self._process.communicate("")


def uploaded(server, pack):
    """The URL of a copy of the pack in a bucket of its own."""
    bucket = f"bucket{next(BUCKETS)}"
    server.upload(pack, bucket, "sets/some.pack")
    return f"s3://{bucket}/sets/some.pack"


def name_the_store(monkeypatch, port):
    """In the environment, which names no other one."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-somebody")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


class Fault:
    """What becomes of the next `times` answers to requests whose path ends in `of`."""

    def __init__(self, kind, of="", times=1, status=503, code="SlowDown", headers=None):
        self.kind, self.of, self.times = kind, of, times
        self.status, self.code, self.headers = status, code, headers or {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        fault = self.server.asked(self.path, self.headers.get("Range"))
        kind = fault.kind if fault else None
        if kind == "reset":
            self.close_connection = True
            return
        if kind == "late":
            # Until the test is over: who waits for this one has none.
            self.server.over.wait()
            self.close_connection = True
            return
        if kind == "answer":
            body = f"<Error><Code>{fault.code}</Code></Error>".encode()
            self._answer(fault.status, {"Retry-After": "0", **fault.headers}, body)
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        headers = {name: value for name, value in self.headers.items() if kind != "whole" or name.lower() != "range"}
        connection.request("GET", self.path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if kind == "flipped":
            # The first byte, and one in the midst, which of a whole chunk is a file's.
            body, midst = bytearray(body), len(body) // 2
            body[0] ^= 1
            body[midst] ^= 2
        names = ("Content-Range", "Content-Type", "ETag", "Last-Modified")
        kept = {name: answer.headers[name] for name in names if answer.headers[name] is not None}
        self._answer(answer.status, kept, body, sent=len(body) // 2 if kind == "cut" else None)

    def _answer(self, status, headers, body, sent=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:sent])
        if sent is not None:
            self.close_connection = True


class Proxy(ThreadingHTTPServer):
    """Stands before a server."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behind):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.port = self.server_address[1]
        self.over = threading.Event()
        # Paths and ranges, and what is to happen; both under the lock.
        self.requests, self.faults = [], []
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def asked(self, path, range_):
        with self._lock:
            self.requests.append((path, range_))
            for fault in self.faults:
                if fault.times > 0 and path.endswith(fault.of):
                    fault.times -= 1
                    return fault
        return None

    def add(self, *fault, **facts):
        with self._lock:
            self.faults.append(Fault(*fault, **facts))

    def handle_error(self, request, client_address):
        # Who has what it wants ends its other request.
        pass

    def close(self):
        self.over.set()
        self.shutdown()
        self.server_close()
