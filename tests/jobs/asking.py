"""A job's collector as the node's service sees one: introduces a job, asks for memory, and does what it is granted, unless it lies.

Writes each grant as a line into the file that it is named after.
"""

import json
import os
import socket
import subprocess
import sys

MIB = 1 << 20


def main():
    name, saved, kind = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    path = os.path.join(os.path.dirname(os.environ["STALLSCOPE_KERNEL_SOCKET"]), "node.sock")
    service = socket.socket(socket.AF_UNIX)
    service.connect(path)
    lines = service.makefile("rw")

    def say(message):
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    say({"stallscope": 1, "role": "job", "name": name})
    json.loads(lines.readline())
    # Ends with this process, however that ends.
    job = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    say({"started": {"pid": job.pid}})
    with open(name + ".granted", "w") as grants:
        for line in lines:
            granted = json.loads(line)["granted"]["cache_bytes"]
            print(granted, file=grants, flush=True)
            held = 1 << 60 if kind == "liar" else granted
            ask = {"granted_bytes": granted, "held_bytes": held, "benefit": [[64 * MIB, saved]]}
            say({"report": {"saved_s": 0.0, "faster": 0.0, "cache": ask}})
    job.kill()


main()
