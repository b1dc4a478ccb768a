"""A job whose shim lies: a page of garbage, descriptors that are none, knobs that cannot be. Ends when FOLDER/stop is
there, and says how often it was cut off."""

import array
import fcntl
import json
import os
import random
import socket
import struct
import sys
import time

F_ADD_SEALS, SEALS = 1033, 2 | 4
rng = random.Random(7)
folder = sys.argv[1]


def memory(content, sealed=True):
    fd = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if sealed:
        fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return fd


def lane():
    header = b"STLLLANE" + struct.pack("<II", 2, 48) + struct.pack("<II", 4, os.getpid())
    return memory(header + bytes(256 - len(header) + 4 * 48))


def page(version=1, slots=64):
    header = b"STLLKNOB" + struct.pack("<II", version, slots) + rng.randbytes(48)
    return memory(header + rng.randbytes(64 * 32))


def send(connection, message, *fds):
    line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([line], rights)


def shim(rank):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ["STALLSCOPE_SOCKET"])
    send(connection, {"stallscope": 1, "role": "shim", "lane_version": 2, "pid": 1, "rank": rank}, lane())
    return connection


def knob(slot, **more):
    fact = {"fact": "knob", "slot": slot, "generation": 1, "name": "depth", "unit": "batches", "loader": slot % 7,
            "value": 3, "initial": 3, "min": 0, "max": 9, "available": True}
    return {**fact, **more}


connections = []
for n, fd in enumerate([page(), page(2), page(slots=9), memory(b"x" * 4096), memory(b"", sealed=False),
                        os.open("/dev/null", os.O_RDWR), os.pipe()[0], lane()]):
    connection = shim(n)
    connections.append(connection)
    send(connection, {"fact": "page", "version": 1}, fd)
    send(connection, {"fact": "page", "version": 1})
    for slot in [0, 63, 64, 2**32 - 1]:
        send(connection, knob(slot))
    send(connection, knob(5, generation=2**32 - 1, name="\x1b[31m\n" + "n" * 5000, reason="\x07" * 3000, min=9, max=0))
    send(connection, knob(2**40))
    send(connection, {"fact": "knobgone", "slot": 77})
    send(connection, b"\xff\xfe{]\n")
# More knobs than anybody has, and a page that comes late and again.
many = shim(100)
connections.append(many)
for slot in range(3000):
    send(many, knob(slot))
send(many, {"fact": "page"}, page())
send(many, {"fact": "page", "version": -1}, page())
# Words that come beside nothing, and a descriptor with no words.
connections.append(shim(101))
send(connections[-1], knob(1))
send(connections[-1], {"fact": "unheard of"}, page())
open(os.path.join(folder, "ready"), "w").close()
while os.path.isdir(folder) and not os.path.exists(os.path.join(folder, "stop")):
    time.sleep(0.01)
gone = 0
for connection in connections:
    try:
        connection.send(b"\n")
    except OSError:
        gone += 1
print("cut off", gone)
