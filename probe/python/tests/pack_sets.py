"""Folders of pictures and what `stallscope pack` makes of them. A module of its own: spawned workers import it."""

import os
import random
import subprocess
from pathlib import Path

import numpy
from collector import PACKAGE
from PIL import Image

# Name below the folder, mode of the picture. In the order in which torchvision's ImageFolder has them.
PICTURES = [
    ("cat/10.png", "RGB"), ("cat/9.JPEG", "L"), ("cat/deep/0.png", "RGBA"), ("cat/deep/er/a.bmp", "RGB"), ("cat/deeper/0.jpg", "RGB"),
    ("cat-like/1.webp", "RGB"), ("dog/x.tiff", "L"), ("dog/\udcff\udcfe.jpg", "RGB"), ("été/ü.png", "P"),
]  # fmt: skip
# What is beside them and no picture.
OTHERS = ["readme.txt", "top.png", "cat/notes.txt", "dog/.hidden"]


def program():
    """The program that was built last."""
    built = [PACKAGE.parent / profile / "stallscope" for profile in ("release", "debug")]
    return max((path for path in built if path.exists()), key=lambda path: path.stat().st_mtime)


def fill(folder, seed=1):
    draw = random.Random(seed)
    for name, mode in PICTURES:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = numpy.frombuffer(draw.randbytes(16 * 12 * 3), "u1").reshape(12, 16, 3)
        Image.fromarray(pixels).convert(mode).save(path)
    for name in OTHERS:
        Path(folder, name).write_bytes(b"no picture")
    return folder


def packed(folder, into=None):
    into = into or f"{folder}.pack"
    done = subprocess.run([program(), "pack", folder, "-o", into], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return into


def as_array(picture):
    return numpy.asarray(picture).copy()


def random_crop(picture):
    at = random.randrange(4)
    return numpy.asarray(picture)[at : at + 8].copy()


def plus_100(target):
    return target + 100


def first_bytes(file):
    return file.read(8)


def damage(pack, name):
    """Flips a bit of the file of this name."""
    data = Path(f"{os.fspath(pack)[: -len('.pack')]}", name).read_bytes()
    for chunk in Path(pack).glob("*.chunk"):
        content = bytearray(chunk.read_bytes())
        at = content.find(data)
        if at >= 0:
            content[at + len(data) // 2] ^= 1
            chunk.write_bytes(content)
            return
    raise AssertionError(f"{name} is in no chunk")
