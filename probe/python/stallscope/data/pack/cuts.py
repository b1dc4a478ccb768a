"""Which part of a picture becomes a sample: the transforms of torchvision that crop, as numbers.

Draws are torchvision's, in its order and from torch's own generator, so that a seed gives the same crops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

# Left, top, width and height of what is resized; to which width and height; left and top of the sample in that; whether it is mirrored.
Cut = tuple[int, int, int, int, int, int, int, int, bool]
# How often torchvision draws before it takes the centre.
_TRIES = 10


class RandomCut:
    """Of `RandomResizedCrop(size, scale, ratio)`, and `RandomHorizontalFlip(flip)` behind it."""

    def __init__(self, height: int, width: int, scale: Sequence[float], ratio: Sequence[float], flip: float) -> None:
        self.height, self.width, self.flip = height, width, _single(flip)
        self.scale, self.ratio = tuple(scale), tuple(ratio)
        # In single precision, as they are drawn from.
        self.logarithms = torch.log(torch.tensor(self.ratio)).tolist()

    def drawer(self) -> Callable[[int, int], Cut]:
        """What gives the cut of a picture of a width and a height; of one thread."""
        # What torch.rand() and torch.randint() make anew is drawn into these, by the same functions of the generator.
        real, whole = torch.empty(1), torch.empty(1, dtype=torch.int64)

        def cut(width, height):
            left, top, wide, high = self._part(width, height, real, whole)
            flip = self.flip > 0 and real.uniform_().item() < self.flip
            return left, top, wide, high, self.width, self.height, 0, 0, flip

        return cut

    def _part(self, width, height, real, whole):
        for _ in range(_TRIES):
            area = width * height * real.uniform_(*self.scale).item()
            aspect = real.uniform_(*self.logarithms).exp_().item()
            wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < wide <= width and 0 < high <= height:
                top = whole.random_(0, height - high + 1).item()
                return whole.random_(0, width - wide + 1).item(), top, wide, high
        least, most = min(self.ratio), max(self.ratio)
        wide, high = width, height
        if width / height < least:
            high = round(width / least)
        elif width / height > most:
            wide = round(height * most)
        return (width - wide) // 2, (height - high) // 2, wide, high


class CentreCut:
    """Of `Resize(resize)` of the shorter side, `CenterCrop(size)` and `RandomHorizontalFlip(flip)` behind them."""

    def __init__(self, height: int, width: int, resize: int, flip: float) -> None:
        self.height, self.width, self.resize, self.flip = height, width, resize, _single(flip)

    def drawer(self) -> Callable[[int, int], Cut]:
        """What gives the cut of a picture of a width and a height; of one thread."""
        real = torch.empty(1)

        def cut(width, height):
            longer = int(self.resize * max(width, height) / min(width, height))
            wide, high = (self.resize, longer) if width <= height else (longer, self.resize)
            left, top = round((wide - self.width) / 2.0), round((high - self.height) / 2.0)
            flip = self.flip > 0 and real.uniform_().item() < self.flip
            return 0, 0, width, height, wide, high, left, top, flip

        return cut


def _single(probability):
    """In single precision, in which torch compares it."""
    return torch.tensor(float(probability)).item()
