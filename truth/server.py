"""A storage service on the loopback that answers each request after an exact delay. Runs outside the job's tree.

A request is 16 bytes (delay in ns, size in bytes), the answer that many bytes. Prints its port.
"""

import socket
import struct
import sys
import threading
import time

REQUEST = struct.Struct("<QQ")


def serve(connection: socket.socket):
    payload = bytes(4 << 20)
    with connection:
        while request := connection.recv(REQUEST.size, socket.MSG_WAITALL):
            delay_ns, size_bytes = REQUEST.unpack(request)
            time.sleep(delay_ns / 1e9)
            connection.sendall(memoryview(payload)[:size_bytes])


def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(listener.getsockname()[1], flush=True)
    # Ends with its parent: its standard input is that process's pipe.
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    sys.stdin.read()


def accept(listener: socket.socket):
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
