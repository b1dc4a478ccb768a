"""The job of `make bench-whatif`: a DataLoader that fetches and decodes, and a trainer that computes.

Prints one line of JSON at its end: its training steps and how long they took. Nothing here knows who watches.
"""

import argparse
import io
import json
import os
import socket
import struct
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

REQUEST = struct.Struct("<QQ")
SAMPLE_BYTES = 64 << 10
MEMORY_SAMPLES = 64
# A step before that is no steady one: workers start, queues fill.
WARM_UP_SECONDS = 2


def hashed(index: int) -> int:
    """As good as chance, and the same in every run."""
    return (index * 2654435761 % (1 << 32)) >> 8


class Samples(Dataset):
    """What a sample costs is what the options say; a share of them is in memory."""

    def __init__(self, options):
        self.options = options
        random = np.random.default_rng(0)
        side = options.jpeg_side
        noise = random.integers(0, 256, (side // 4, side // 4, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC).save(out, "jpeg", quality=85)
        self.jpeg = out.getvalue()
        self.blocks = Path(options.file).stat().st_size // SAMPLE_BYTES if options.file else 0
        self.place = None

    def __len__(self):
        return 1 << 22

    def __getitem__(self, index):
        options = self.options
        if hashed(index) % 100 >= options.cached:
            self.fetch(index)
        if options.burst_every and index % options.burst_every == options.burst_every - 1:
            time.sleep(options.burst_ms / 1e3)
        # Samples differ, by a factor of two here.
        decodes = options.decodes * (0.67 + 0.67 * (hashed(index + 7) % 1000) / 1000)
        whole = int(decodes) + (hashed(index + 13) % 1000 < decodes % 1 * 1000)
        pixels = None
        for _ in range(whole):
            pixels = np.asarray(Image.open(io.BytesIO(self.jpeg)).convert("RGB"))
        return torch.zeros(64, 64, 3, dtype=torch.uint8) if pixels is None else torch.from_numpy(pixels[:64, :64].copy())

    def fetch(self, index):
        options = self.options
        if options.file:
            if self.place is None:
                self.place = os.open(options.file, os.O_RDONLY)
            offset = hashed(index) % self.blocks * SAMPLE_BYTES
            os.pread(self.place, SAMPLE_BYTES, offset)
            os.posix_fadvise(self.place, offset, SAMPLE_BYTES, os.POSIX_FADV_DONTNEED)
        if options.port:
            if self.place is None:
                self.place = socket.create_connection(("127.0.0.1", options.port))
                self.place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Between half and one and a half times the mean.
            delay_ns = options.delay_ms * 1e6 * (0.5 + (hashed(index + 3) % 1000) / 1000)
            self.place.sendall(REQUEST.pack(int(delay_ns), 4096))
            left = 4096
            while left:
                came = self.place.recv(left)
                if not came:
                    raise ConnectionError("the server is gone")
                left -= len(came)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="of steady training")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--factor", type=int, default=2, help="batches in advance for each worker")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--file", help="each sample is a block of this file")
    parser.add_argument("--port", type=int, help="each sample is a request to truth/server.py here")
    parser.add_argument("--delay-ms", type=float, default=0, help="of a request")
    parser.add_argument("--cached", type=float, default=0, help="per cent of samples that are in memory")
    parser.add_argument("--decodes", type=float, default=0, help="JPEGs a sample")
    parser.add_argument("--jpeg-side", type=int, default=224)
    parser.add_argument("--burst-every", type=int, default=0, help="samples")
    parser.add_argument("--burst-ms", type=float, default=0)
    parser.add_argument("--device-ms", type=float, default=0, help="of a step that a device works")
    parser.add_argument("--compute-ms", type=float, default=0, help="of CPU time of the trainer in a step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Samples(options),
        options.batch,
        num_workers=options.workers,
        prefetch_factor=options.factor if options.workers else None,
    )
    begun = measured_from = ended = None
    steps, samples = 0, 0
    for batch in loader:
        now = time.monotonic()
        begun = begun or now
        if measured_from is None and now - begun >= WARM_UP_SECONDS:
            measured_from = now
        elif measured_from is not None:
            steps, samples, ended = steps + 1, samples + len(batch), now
            if now - measured_from >= options.seconds:
                break
        compute(options.compute_ms)
        if options.device_ms:
            time.sleep(options.device_ms / 1e3)
    seconds = ended - measured_from
    print(json.dumps({"steps": steps, "samples": samples, "seconds": seconds, "step_ms": seconds / steps * 1e3}))


def compute(ms: float):
    until = time.thread_time() + ms / 1e3
    matrix = torch.ones(64, 64)
    while ms and time.thread_time() < until:
        matrix = torch.tanh(matrix @ matrix)


if __name__ == "__main__":
    main()
