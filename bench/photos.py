"""JPEG files that cost a decoder what photographs do: noise whose detail falls off as it does in them, of log-normal sizes."""

import random
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, TEXTURES, QUALITY, CLASSES = 2048, 6, 90, 10
# Of the logarithm of a file's bytes.
SIGMA = 0.5


def texture(draw, detail):
    """A plane of values around 0: octaves, the finer the weaker."""
    plane = np.zeros((SIDE, SIDE), dtype=np.float32)
    for octave in range(3, 12):
        side = 1 << octave
        if side > SIDE * detail:
            break
        coarse = Image.fromarray(draw.standard_normal((side, side)).astype(np.float32))
        plane += np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) * 0.62 ** (octave - 3)
    return plane


def photograph(draw):
    """Brightness with fine detail, colours with little of it."""
    bright, red, blue = texture(draw, 1), texture(draw, 1 / 16), texture(draw, 1 / 16)
    planes = [bright + 0.5 * red, bright - 0.2 * red - 0.2 * blue, bright + 0.5 * blue]
    return Image.fromarray((128 + 38 * np.stack(planes, axis=2)).clip(0, 255).astype(np.uint8))


def make_photos(folder: Path, count: int, mean_bytes: int) -> None:
    """Makes them once, in ImageFolder's layout; the same on every machine."""
    done = folder.with_name(f"{folder.name}-{count}")
    if done.exists():
        return
    textures = [photograph(np.random.default_rng(number)) for number in range(TEXTURES)]
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / "probe.jpg"
    textures[0].crop((0, 0, 512, 512)).save(probe, quality=QUALITY)
    bytes_a_pixel = probe.stat().st_size / 512**2
    probe.unlink()
    draw = random.Random(1)
    for number in range(count):
        wanted = draw.lognormvariate(0, SIGMA) * mean_bytes / 2.718281828 ** (SIGMA**2 / 2)
        shape = draw.uniform(0.7, 1.4)
        pixels = wanted / bytes_a_pixel
        width, height = (min(SIDE, max(32, round((pixels * part) ** 0.5))) for part in (shape, 1 / shape))
        left, top = draw.randrange(SIDE - width + 1), draw.randrange(SIDE - height + 1)
        path = folder / f"{number % CLASSES:02}" / f"{number:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        textures[number % TEXTURES].crop((left, top, left + width, top + height)).save(path, quality=QUALITY)
    done.touch()
