"""The loader benchmark's data: small JPEG files in ImageFolder's layout."""

from pathlib import Path

import numpy as np
from PIL import Image

FILES, SIDE, CLASSES = 2048, 64, 8


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
