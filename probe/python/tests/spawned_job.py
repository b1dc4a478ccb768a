"""A script that sets PYTHONPATH for programs of its own, and has its workers spawned.

usage: spawned_job.py START_METHOD FOLDER; prints a line that says what came of its epochs.
"""

import json
import os
import random
import sys
from pathlib import Path

import numpy
import torch
from job_cache_job import FILES, epochs

if __name__ == "__main__":
    os.environ["PYTHONPATH"] = "/nowhere"
    start_method, folder = sys.argv[1:]
    os.makedirs(folder)
    for number in range(FILES):
        Path(folder, f"{number:02}").write_bytes(bytes([65 + number]) * 500)
    random.seed(7)
    numpy.random.seed(7)
    torch.manual_seed(7)
    print(json.dumps(epochs(folder, count=2, num_workers=1, multiprocessing_context=start_method)[0]))
