"""Makes a small data set of JPEG files for the demo, the same on every machine: `images.py FOLDER`.

Four classes of coloured shapes on noise; each file has some tens of KB, as photographs of this size have.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ["disc", "square", "ring", "cross"]
SETS = {"train": 2000, "val": 320}
SIDE = 320


def picture(kind: str, seed: int) -> Image.Image:
    random = np.random.default_rng(seed)
    coarse = random.integers(40, 216, (9, 9, 3), dtype=np.uint8)
    ground = np.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.int16)
    grain = random.normal(0, 14, ground.shape).astype(np.int16)
    image = Image.fromarray(np.clip(ground + grain, 0, 255).astype(np.uint8))
    x, y = random.integers(100, SIDE - 100, 2)
    radius = int(random.integers(50, 100))
    colour = tuple(int(part) for part in random.integers(0, 256, 3))
    box = [x - radius, y - radius, x + radius, y + radius]
    draw = ImageDraw.Draw(image)
    if kind == "disc":
        draw.ellipse(box, fill=colour)
    elif kind == "square":
        draw.rectangle(box, fill=colour)
    elif kind == "ring":
        draw.ellipse(box, outline=colour, width=radius // 3)
    else:
        draw.line([x - radius, y, x + radius, y], fill=colour, width=radius // 2)
        draw.line([x, y - radius, x, y + radius], fill=colour, width=radius // 2)
    return image


def make(work: tuple[Path, str, int]):
    path, kind, seed = work
    picture(kind, seed).save(path, quality=90)


def main():
    folder = Path(sys.argv[1])
    done = folder / "complete"
    if done.exists():
        return
    work = []
    for name, count in SETS.items():
        for kind in CLASSES:
            (folder / name / kind).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            kind = CLASSES[number % len(CLASSES)]
            work.append((folder / name / kind / f"{number:05}.jpg", kind, len(work)))
    with ProcessPoolExecutor() as pool:
        list(pool.map(make, work, chunksize=64))
    done.touch()


if __name__ == "__main__":
    main()
