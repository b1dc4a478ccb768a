"""Watches a process tree by the node's collector and says what it is given: spy.py SOCKET PID OUT [syscalls], until SIGTERM.

OUT has "watching" once it is, and in the end a JSON object: per process the bytes that its slices have read, the
names of files that were waited for, and what was lost, by reason. OUT.now has the same as it stands meanwhile.
"""

import json
import os
import signal
import socket
import struct
import sys

RECORD, TICK, SLICE = 1, 3, 1
FILE_WAIT = 5
# Of a slice: header, start, times, siblings' time on and without a CPU; of a file: its key, and its wait up to the name.
RCHAR_AT, NAME_AT, NAME_BYTES = 24 + 8 + 8 * 18 + 16, 24 + 24, 64

path, pid, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
service = socket.socket(socket.AF_UNIX)
service.connect(path)
hello = {"stallscope": 1, "role": "kernel", "watch": pid, "syscalls": sys.argv[4:] == ["syscalls"]}
service.sendall(json.dumps(hello).encode() + b"\n")
answer = b""
while not answer.endswith(b"\n"):
    answer += service.recv(1)
if b"watching" not in answer:
    sys.exit(answer.decode())
with open(out, "w") as file:
    file.write("watching")

ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
service.settimeout(0.2)
read, names, lost, buffer = {}, set(), {}, b""


def seen():
    return json.dumps({"read": read, "names": sorted(names), "lost": lost})


shown = ""
while not ended:
    try:
        buffer += service.recv(1 << 16) or sys.exit("the collector hung up")
    except TimeoutError:
        continue
    while len(buffer) >= 4 and len(buffer) >= 4 + (length := struct.unpack_from("=I", buffer)[0]):
        tag, payload, buffer = buffer[4], buffer[5 : 4 + length], buffer[4 + length :]
        if tag == RECORD:
            kind, _, _, _, tgid = struct.unpack_from("=HHIII", payload)
            bytes_read = struct.unpack_from("=Q", payload, RCHAR_AT)[0] if kind == SLICE else 0
            read[tgid] = read.get(tgid, 0) + bytes_read
        elif tag == TICK:
            lost = dict(json.loads(payload)["lost"])
        elif tag == FILE_WAIT:
            names.add(payload[NAME_AT : NAME_AT + NAME_BYTES].split(b"\0")[0].decode())
    if shown != (shown := seen()):
        with open(out + ".new", "w") as file:
            file.write(shown)
        os.rename(out + ".new", out + ".now")
with open(out, "w") as file:
    file.write(seen())
