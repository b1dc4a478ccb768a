"""A job that has knobs and nothing else: looks for requests every few milliseconds, as others do at each batch.

usage: turned.py FOLDER applies|refuses|ignores|checks: appends to FOLDER/values (FOLDER/values1 for rank 1, as torchrun's
environment has it) what is in force whenever that changes, and ends when FOLDER/stop is there, or FOLDER is not. One that
checks appends to FOLDER/unrecorded what it is asked for while the audit in FOLDER/*.stall has no line of it.
"""

import glob
import json
import os
import sqlite3
import sys
import time

sys.path.insert(0, os.environ["STALLSCOPE_PYTHON"])

from stallscope import _native  # noqa: E402

folder, manner = sys.argv[1:]
rank = int(os.environ.get("RANK", 0))
greeting = {"kind": "trainer", "argv": sys.argv, "rank": rank, "world_size": int(os.environ.get("WORLD_SIZE", 1))}
_native.configure(os.environ["STALLSCOPE_SOCKET"], json.dumps(greeting), 256)
prefetch = _native.knob("prefetch", "batches", 4, 1, 64, 0)
workers = _native.knob("workers", "workers", 2, 1, 8, 0)
_native.knob_unavailable("workers", "workers", 0, 1, "The loader has no workers.")


def is_recorded(name, value):
    (recording,) = glob.glob(os.path.join(folder, "*.stall"))
    connection = sqlite3.connect(f"file:{recording}?mode=ro", uri=True)
    asked = "SELECT count(*) FROM audit WHERE act = 'request' AND knob = ? AND to_value = ?"
    ((count,),) = connection.execute(asked, (name, value)).fetchall()
    connection.close()
    return count > 0


names = {prefetch: "prefetch", workers: "workers"}
in_force = {prefetch: 4, workers: 2}
with open(os.path.join(folder, f"values{rank or ''}"), "a", buffering=1) as values:
    while os.path.isdir(folder) and not os.path.exists(os.path.join(folder, "stop")):
        _native.poll()
        if manner != "ignores" and _native.turned():
            for slot, value in _native.requests():
                if manner == "checks" and not is_recorded(names[slot], value):
                    with open(os.path.join(folder, "unrecorded"), "a") as unrecorded:
                        print(names[slot], value, file=unrecorded)
                if manner == "refuses" and slot == workers:
                    _native.answer(slot, in_force[slot], "refused", "There is no memory for more.")
                    continue
                in_force[slot] = value
                print(names[slot], value, file=values)
                _native.answer(slot, value, "applied", "")
        time.sleep(0.002)
print(in_force[prefetch], in_force[workers])
