"""Reads all files of a folder in a new order in each epoch, as its own process reads them from the device, until it is stopped.

usage: shuffled.py FOLDER STOP [kept]; `kept`: each file is opened once, before the first epoch.
"""

import os
import random
import sys
import time
import zlib
from contextlib import nullcontext

folder, stop = sys.argv[1:3]
names = sorted(os.listdir(folder))
kept = {name: nullcontext(open(os.path.join(folder, name), "rb")) for name in names if sys.argv[3:] == ["kept"]}


def from_device():
    with open("/proc/self/io") as figures:
        return next(int(line.split()[1]) for line in figures if line.startswith("read_bytes"))


epoch = 0
while not os.path.exists(stop):
    random.Random(epoch).shuffle(names)
    before, total = from_device(), 0
    for name in names:
        with kept[name] if kept else open(os.path.join(folder, name), "rb") as file:
            total = (total + zlib.crc32(os.pread(file.fileno(), 1 << 20, 0))) % 2**32
            # What it does with a sample.
            time.sleep(0.002)
    print(epoch, from_device() - before, total, flush=True)
    epoch += 1
