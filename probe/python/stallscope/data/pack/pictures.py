"""The pictures of a pack as tensors of one size, decoded and resized in native threads without the interpreter's lock."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from stallscope import _native
from stallscope.checkpoint.errors import printable

from .cuts import CentreCut, Cut, RandomCut
from .errors import PackError
from .images import PackedImageFolder
from .in_chunks import is_passed_on
from .opening import within

if TYPE_CHECKING:
    from stallscope._native import PictureDecoder, Pictures

# Of more pixels Pillow warns, or refuses them, as it is set: these are left to it.
_MOST_PIXELS = 89_478_485
_MOST_SIDE = 1 << 14
# What Pillow's readers raise at files with a fault.
_OF_PILLOW = (
    OSError, SyntaxError, ValueError, EOFError, MemoryError, LookupError, ArithmeticError, TypeError, AttributeError, struct.error, zlib.error,
)  # fmt: skip
# Of a picture's number, before its bytes where a cache keeps them.
_NUMBER_BYTES = 8


class PackedImages(PackedImageFolder):
    """The pictures of a pack, cropped and resized to one size as torchvision does it, without waiting for Python.

    A sample is a pair of a `torch.uint8` tensor of shape (3, height, width) and the number of its class: the pixels, crops and flips
    of a `PackedImageFolder` with torchvision's `RandomResizedCrop(size)`, `RandomHorizontalFlip()` and `PILToTensor()`, or its
    `Resize(resize)`, `CenterCrop(size)` and `PILToTensor()`. Crops and flips are drawn from torch's generator in torchvision's order, so that the same seed gives the
    same samples. torchvision itself is not needed. Pillow 13 resizes crops that lose more than twice as many rows as columns in another order,
    and differs there by one level of 255 in some pixels.

    - JPEG files are decoded in threads of our own with the interpreter's lock released, only where the sample has pixels of, and straight into
      the memory of their batch, which torch's own `DataLoader` hands over without copying it again. All others, and JPEG
      files with a fault, with four colours or of more than 89,478,485 pixels, are decoded by Pillow, which then has to be there.
    - A picture that Pillow cannot decode either raises PackError, which names it. Orientation that a camera noted (EXIF) is
      not looked at, as `ImageFolder` does not.
    - It works in workers that are forked or spawned, and in threads; pickled, it is a path and these arguments.

    Args:
        path: The folder that `stallscope pack SRC -o PACK` wrote, or the URL of a copy of it in object storage.
        size: Side of a sample in pixels, or its height and width.
        crop: "random", as `RandomResizedCrop` crops, or "center", as `Resize` and `CenterCrop` do.
        scale: Of "random": least and largest part of the picture's area.
        ratio: Of "random": least and largest ratio of width to height.
        resize: Of "center": what the shorter side is resized to, in pixels, at least the size; 256 for 224, and in that ratio.
        flip: How probable it is that a sample is mirrored; 0 draws nothing. 0.5 with "random", 0 with "center".
        scaled: Whether pictures may be decoded at a half, a quarter or an eighth of their size, where that is enough: faster for
            large pictures, and not the same pixels (docs/packs.md says how near).
        threads: That decode a batch, the caller's included; as many as there are CPUs, and 1 in a worker process.
        target_transform: Makes the target of the number of a class.
        local: Of a pack in object storage: a folder on a local disk in which whole chunks are kept, as of `PackedDataset`.
        local_limit: How many bytes that folder may take, as a number or text such as "200GiB".

    Raises:
        PackError: There is no pack, its snapshot is of another state of it, or it has no pictures in folders; `local` cannot be
            used. Reading: damaged bytes, a cut chunk, a picture that cannot be decoded.
        ValueError: An argument that is out of range.

    Example:
        >>> import stallscope
        >>> dataset = stallscope.PackedImages("animals.pack", size=4, crop="center")
        >>> picture, target = dataset[1]
        >>> picture.shape, picture.dtype, target
        (torch.Size([3, 4, 4]), torch.uint8, 0)
    """

    _decoder: PictureDecoder

    def __init__(
        self,
        path: str | os.PathLike[str],
        size: int | tuple[int, int],
        crop: str = "random",
        *,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        resize: int | None = None,
        flip: float | None = None,
        scaled: bool = False,
        threads: int | None = None,
        target_transform: Callable[[int], Any] | None = None,
        local: str | os.PathLike[str] | None = None,
        local_limit: int | str | None = None,
    ) -> None:
        super().__init__(path, target_transform=target_transform, local=local, local_limit=local_limit)
        sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        if len(sides) != 2 or any(type(side) is not int or not 0 < side <= _MOST_SIDE for side in sides):
            raise ValueError(f"PackedImages: size={size!r} has to be a whole number of 1 to {_MOST_SIDE} pixels, or two of them: height and width")
        if threads is not None and (type(threads) is not int or threads < 1):
            raise ValueError(f"PackedImages: threads={threads!r} has to be a whole number of at least 1")
        self.size = sides
        self.scaled = bool(scaled)
        self.threads = threads
        self.cut = _cut(sides, crop, scale, ratio, resize, flip)
        self._decoder = _native.PictureDecoder(sides[1], sides[0], self.scaled, _MOST_PIXELS)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._samples_of([index])[0]

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], list[tuple[Any, Any]]]:
        """A batch, of samples that have one memory: what `DataLoader` asks for in place of one sample after the other. Subclasses with a
        `__getitem__` of their own, and what wraps it, have none: it would go past theirs."""
        kind = type(self)
        # One that has both may call this one.
        changes = kind.__getitem__ is not PackedImages.__getitem__ and kind.__getitems__ is PackedImages.__getitems__
        if changes or is_passed_on():
            raise AttributeError("__getitems__")
        return self._samples_of

    def _samples_of(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        found = [self._images.at(within(index, len(self))) for index in indices]
        threads = self._threads()
        pictures = self._decoder.read(self._pack, [record for record, _ in found], threads)
        return self._samples(pictures, found, threads, _memory((len(found), 3, *self.size)))

    # What a cache keeps, and what it makes a sample of.

    def fetch(self, index):
        number = within(index, len(self))
        return self._pack.read(self._images.at(number)[0], number.to_bytes(_NUMBER_BYTES, "little"))

    def decode(self, data):
        found = self._images.at(int.from_bytes(data[:_NUMBER_BYTES], "little"))
        pictures = self._decoder.of([bytes(memoryview(data)[_NUMBER_BYTES:])])
        return self._samples(pictures, [found], 1, torch.empty((1, 3, *self.size), dtype=torch.uint8))[0]

    def _samples(self, pictures: Pictures, found: Sequence[tuple[int, int]], threads: int, whole: torch.Tensor) -> list[tuple[Any, Any]]:
        cut_of = self.cut.drawer()
        opened: dict[int, Any] = {}
        sizes: list[tuple[int, int]] = []
        cuts: list[Cut] = []
        targets = []
        states = [torch.get_rng_state()]
        refused = None
        for number, size in enumerate(pictures.sizes()):
            if size is None:
                # Its size is all that is read of it here.
                try:
                    opened[number] = self._opened(pictures, number, found)
                except PackError as error:
                    refused = error
                    break
                size = opened[number].size
            if self.target_transform is not None and number:
                states.append(torch.get_rng_state())
            sizes.append(size)
            cuts.append(cut_of(*size))
            # Here, as it may draw, too.
            label = found[number][1]
            targets.append(label if self.target_transform is None else self.target_transform(label))
        native = [(number, cut) for number, cut in enumerate(cuts) if number not in opened]
        if native:
            for number, _ in self._decoder.decode(pictures, native, whole.data_ptr(), whole.numel(), threads):
                opened[number] = None
        # In their order, so that the first one that cannot be decoded is named.
        for number in sorted(opened):
            try:
                picture = opened[number] or self._opened(pictures, number, found)
                with self._named(found[number][0]):
                    whole[number] = self._resized(picture, cuts[number])
            except PackError:
                self._draw_again(states, sizes[:number])
                raise
        if refused is not None:
            raise refused
        return [_Sample(whole, at, pair) for at, pair in enumerate(zip(whole.unbind(0), targets))]

    def _draw_again(self, states: list[torch.Tensor], sizes: list[tuple[int, int]]):
        """As if nothing had been drawn beyond these pictures of the batch: torchvision draws once a picture is decoded."""
        if self.target_transform is not None:
            torch.set_rng_state(states[len(sizes)])
            return
        torch.set_rng_state(states[0])
        cut_of = self.cut.drawer()
        for size in sizes:
            cut_of(*size)

    def _opened(self, pictures, number, found):
        """By Pillow, which has not decoded it yet."""
        try:
            from PIL import Image
        except ImportError as error:
            name = self._name(found[number][0])
            raise PackError(printable(f"{self.root}: the picture {name} is no plain JPEG file, and takes Pillow: install pillow")) from error
        with self._named(found[number][0]):
            return Image.open(io.BytesIO(pictures.encoded(number)))

    @contextmanager
    def _named(self, record):
        """What Pillow finds wrong with a picture is an error that names it."""
        from PIL import Image, UnidentifiedImageError

        try:
            yield
        except (*_OF_PILLOW, Image.DecompressionBombError) as error:
            # Of what it does not know it names the object that it was given.
            unknown = isinstance(error, UnidentifiedImageError)
            reason = "of no format that Pillow knows" if unknown else str(error).split("\n")[0].rstrip(".") or type(error).__name__
            raise PackError(printable(f"{self.root}: the picture {self._name(record)} cannot be decoded: {reason}")) from error

    def _name(self, record):
        return os.fsdecode(self._pack.name(record))

    def _resized(self, picture, cut):
        """By Pillow, as torchvision's transforms of these names have it."""
        from PIL import Image

        left, top, width, height, to_width, to_height, at_left, at_top, flip = cut
        picture = picture.convert("RGB").crop((left, top, left + width, top + height))
        # Across and then down, as it is done natively: by itself Pillow of some versions chooses.
        for size in ((to_width, height), (to_width, to_height)):
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        high, wide = self.size
        picture = picture.crop((at_left, at_top, at_left + wide, at_top + high))
        if flip:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(high, wide, 3).permute(2, 0, 1)

    def _threads(self):
        if self.threads is not None:
            return self.threads
        return 1 if torch.utils.data.get_worker_info() is not None else len(os.sched_getaffinity(0))

    def __repr__(self):
        return f"PackedImages({self.root!r}, {len(self)} pictures of {self.size[0]} x {self.size[1]}, {len(self.classes)} classes)"


class _Sample(tuple):
    """A picture and its target, which knows its place in the memory of its batch."""

    whole: Any
    at: int

    def __new__(cls, whole, at, pair):
        self = super().__new__(cls, pair)
        self.whole, self.at = whole, at
        return self

    def __reduce__(self):
        # Elsewhere it is a pair.
        return tuple, (tuple(self),)


def _collated(batch, *, collate_fn_map=None):
    """Of torch's default_collate: the memory of a batch whose samples are all there, in their order; else a copy of them."""
    collate = torch.utils.data.default_collate
    whole = getattr(batch[0], "whole", None)
    is_whole = whole is not None and len(whole) == len(batch)
    if is_whole and all(getattr(one, "whole", None) is whole and one.at == at for at, one in enumerate(batch)):
        pictures = whole
    else:
        pictures = collate([picture for picture, _ in batch])
    return [pictures, collate([target for _, target in batch])]


def _register():
    """For default_collate, which then need not copy batches of ours. An older torch copies them."""
    from torch.utils.data._utils import collate

    known = getattr(collate, "default_collate_fn_map", None)
    if known is not None:
        known[_Sample] = _collated


_register()


def _memory(shape):
    """A tensor for a batch; in a worker in memory that the trainer can map, as default_collate has it."""
    if torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    empty = torch.empty(0, dtype=torch.uint8)
    count = shape[0] * shape[1] * shape[2] * shape[3]
    return empty.new(empty._typed_storage()._new_shared(count, device=empty.device)).resize_(shape)


def _cut(sides, crop, scale, ratio, resize, flip):
    high, wide = sides
    if crop not in ("random", "center"):
        raise ValueError(f'PackedImages: crop={crop!r} is "random" or "center"')
    flip = (0.5 if crop == "random" else 0) if flip is None else flip
    if not 0 <= flip <= 1:
        raise ValueError(f"PackedImages: flip={flip!r} is a probability, 0 to 1")
    if crop == "random":
        for name, pair, most in (("scale", scale, 1), ("ratio", ratio, float("inf"))):
            if len(pair) != 2 or not 0 < pair[0] <= pair[1] <= most:
                raise ValueError(f"PackedImages: {name}={pair!r} has to be two positive numbers, the least first" + (", of at most 1" if most == 1 else ""))
        if resize is not None:
            raise ValueError('PackedImages: resize= is of crop="center"')
        return RandomCut(high, wide, scale, ratio, flip)
    resize = max(sides) * 256 // 224 if resize is None else resize
    if type(resize) is not int or not max(sides) <= resize <= _MOST_SIDE:
        raise ValueError(f"PackedImages: resize={resize!r} has to be a whole number of {max(sides)} (the size) to {_MOST_SIDE} pixels")
    return CentreCut(high, wide, resize, flip)
