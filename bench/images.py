"""The loader benchmark's data: small JPEG files in ImageFolder's layout."""

import ctypes
import os
from pathlib import Path

import numpy as np
from PIL import Image

FILES, SIDE, CLASSES = 2048, 64, 8
PROT_READ, MAP_SHARED, MAP_LOCKED, MAP_POPULATE = 1, 1, 0x2000, 0x8000


def make_images(folder: Path):
    """Makes them once; some 2 KB each."""
    done = folder.with_name(f"{folder.name}-{FILES}-{SIDE}")
    if done.exists():
        return
    random = np.random.default_rng(0)
    for number in range(FILES):
        path = folder / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=85)
    done.touch()


def keep_in_memory(folder: Path, pattern: str = "*.jpg"):
    """Locks the files' cached pages for as long as this process lives, so that a warm cache stays warm."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    for path in folder.rglob(pattern):
        file = os.open(path, os.O_RDONLY)
        flags = MAP_SHARED | MAP_LOCKED | MAP_POPULATE
        address = libc.mmap(None, os.fstat(file).st_size, PROT_READ, flags, file, 0)
        os.close(file)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), f"the pages of {path} cannot be locked; raise `ulimit -l`")
