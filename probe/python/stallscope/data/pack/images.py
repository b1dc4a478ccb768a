"""The pictures of a folder that was packed, as torchvision's ImageFolder gives those of the folder."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

from stallscope import _native

from .in_chunks import InChunks, read_at_once
from .opening import opened, within

if TYPE_CHECKING:
    from stallscope._native import PackImages, PackReader

# Those of torchvision.datasets.folder, which is not needed to read them.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Of a class's number, before a picture's bytes.
_LABEL_BYTES = 4


def pil_loader(file):
    """As torchvision's loader of that name, of an open file."""
    from PIL import Image

    return Image.open(file).convert("RGB")


@read_at_once
class PackedImageFolder(InChunks):
    """Stands for `torchvision.datasets.ImageFolder` of a folder that `stallscope pack` packed.

    The same `classes`, `class_to_idx`, order, `targets` and pixels: training from the pack is training from the folder. Of a pack of tar files whose
    files had labels, `classes` are these numbers as text, from 0 to the largest.
    `samples` and `imgs` pair a path within the pack, which names the picture and is no file, with the number of its class; they
    are made one by one, where they are asked for. torchvision itself is not needed.

    - It works in workers that are forked or spawned, and in threads. Pickled, it is a path and the functions below: opened
      elsewhere, the pack has to be in the same state.
    - Every read is compared with the picture's checksum: damaged bytes raise PackError and are never a sample.
    - With `stallscope.DataLoader(cache=…)` its encoded pictures are kept in memory.

    Args:
        path: The folder that `stallscope pack SRC -o PACK` wrote, or the URL of a copy of it in object storage.
        transform: Makes the sample of a picture.
        target_transform: Makes the target of the number of a class.
        loader: Makes the picture of an open binary file, which has no path; PIL's RGB image by default.
        local: Of a pack in object storage: a folder on a local disk in which whole chunks are kept, as of `PackedDataset`.
        local_limit: How many bytes that folder may take, as a number or text such as "200GiB".

    Raises:
        PackError: There is no pack, its snapshot is of another state of it, or it has no pictures in folders; `local` cannot be
            used. Reading: damaged bytes, a cut chunk.
        ValueError: `local_limit` is not a size, or without `local`.
        TypeError: A subclass has a `find_classes` or `make_dataset`, which torchvision would call.

    Example:
        >>> import stallscope
        >>> dataset = stallscope.PackedImageFolder("animals.pack")
        >>> dataset.classes, dataset.samples[1]
        (['cat', 'dog'], ('animals.pack/cat/2.png', 0))
        >>> picture, target = dataset[1]
        >>> picture.size, target
        ((8, 8), 0)
    """

    _pack: PackReader
    _images: PackImages

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        loader: Callable[[Any], Any] = pil_loader,
        *,
        local: str | os.PathLike[str] | None = None,
        local_limit: int | str | None = None,
    ) -> None:
        for name in ("find_classes", "make_dataset"):
            if hasattr(type(self), name):
                # torchvision would call it.
                raise TypeError(
                    f"{type(self).__name__}.{name}() would not be called: classes and pictures are those of the pack; give target_transform=, "
                    "which makes another target of the number of a class, or a torch.utils.data.Subset"
                )
        self.root = os.fspath(path)
        self.transform = transform
        self.target_transform = target_transform
        self.loader = loader
        self.extensions = EXTENSIONS
        self._pack = opened(path, 2, local, local_limit)
        self._images = _native.PackImages(self._pack, [os.fsencode(one) for one in EXTENSIONS])
        self.classes = [os.fsdecode(name) for name in self._images.classes()]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        record, label = self._images.at(within(index, len(self)))
        return self._sample(self._pack.read(record, b""), label)

    @property
    def samples(self) -> Sequence[tuple[str, int]]:
        return _Samples(self)

    @property
    def imgs(self) -> Sequence[tuple[str, int]]:
        return _Samples(self)

    @property
    def targets(self) -> list[int]:
        return [self._images.at(number)[1] for number in range(len(self))]

    # What a cache keeps, and what it makes a sample of: stallscope.DataLoader calls these.

    def fetch(self, index):
        record, label = self._images.at(within(index, len(self)))
        return self._pack.read(record, label.to_bytes(_LABEL_BYTES, "little"))

    def _fetch_each(self, indices):
        found = [self._images.at(within(index, len(self))) for index in indices]
        read = self._pack.read_each([record for record, _ in found])
        return [label.to_bytes(_LABEL_BYTES, "little") + data for (_, label), data in zip(found, read)]

    def decode(self, data):
        return self._sample(memoryview(data)[_LABEL_BYTES:], int.from_bytes(data[:_LABEL_BYTES], "little"))

    def had(self, index):
        self._pack.pass_by(self._images.at(within(index, len(self)))[0])

    def _sample(self, data, label):
        sample = self.loader(io.BytesIO(data))
        if self.transform is not None:
            sample = self.transform(sample)
        return sample, label if self.target_transform is None else self.target_transform(label)

    def __repr__(self):
        return f"PackedImageFolder({self.root!r}, {len(self)} pictures, {len(self.classes)} classes)"


class _Samples(Sequence):
    """Path within the pack and class of each picture; as a list of them, without one."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        record, label = self._dataset._images.at(within(index, len(self)))
        return os.path.join(self._dataset.root, os.fsdecode(self._dataset._pack.name(record))), label

    def __eq__(self, other):
        return len(self) == len(other) and all(one == another for one, another in zip(self, other))
