"""The bytes of any files that were packed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .in_chunks import InChunks, read_at_once
from .opening import opened, within

if TYPE_CHECKING:
    from stallscope._native import PackReader


@read_at_once
class PackedDataset(InChunks):
    """The files of a pack that `stallscope pack` made, as bytes, in the order of their names.

    - It is opened without listing or opening any file but the pack's snapshot, and works in workers that are forked or spawned,
      and in threads. Pickled, it is a path: opened elsewhere, the pack has to be in the same state.
    - Every read is compared with the file's checksum: damaged bytes raise PackError and are never a sample.
    - With `stallscope.DataLoader(cache=…)` its samples are kept in memory.

    Args:
        path: The folder that `stallscope pack SRC -o PACK` wrote, or the URL of a copy of it in object storage
            (`s3://`, `gs://`, `az://`, `https://`; docs/packs.md has where credentials are taken from).
        local: Of a pack in object storage: a folder on a local disk in which whole chunks are kept as they are first read, for the
            next epoch, the next run, and other processes and ranks of this machine.
        local_limit: How many bytes that folder may take, as a number or text such as "200GiB". Omitted, as much as leaves a tenth
            of its file system free.

    Raises:
        PackError: There is no pack, or its snapshot is of another state of it; `local` cannot be made or written, may be written
            to by others, or is given for a folder. Reading: damaged bytes, a cut chunk; a store that gives no answer in time.
        ValueError: `local_limit` is not a size, or without `local`.

    Example:
        >>> import stallscope
        >>> dataset = stallscope.PackedDataset("texts.pack")
        >>> len(dataset), dataset.name(0), dataset[0]
        (2, 'en/hello.txt', b'hello')
    """

    _pack: PackReader

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        local: str | os.PathLike[str] | None = None,
        local_limit: int | str | None = None,
    ) -> None:
        self._pack = opened(path, 2, local, local_limit)

    def __len__(self) -> int:
        return len(self._pack)

    def __getitem__(self, index: int) -> bytes:
        return self.fetch(index)

    def name(self, index: int) -> str:
        """The path of a file relative to the folder that was packed, as `os.fsdecode` gives it.

        Args:
            index: Of the file, as for the data set itself.

        Returns:
            The path, with `/` between its parts.

        Raises:
            IndexError: There are fewer files.

        Example:
            >>> import stallscope
            >>> stallscope.PackedDataset("texts.pack").name(1)
            'fr/bonjour.txt'
        """
        return os.fsdecode(self._pack.name(within(index, len(self))))

    def label(self, index: int) -> int | None:
        """The number of a file's class: that of its topmost folder among all, sorted; or the label that came with it in a tar file.

        Args:
            index: Of the file, as for the data set itself.

        Returns:
            The number; None of a file that has none.

        Raises:
            IndexError: There are fewer files.

        Example:
            >>> import stallscope
            >>> stallscope.PackedDataset("texts.pack").label(1)
            1
        """
        return self._pack.label(within(index, len(self)))

    def index(self, name: str | bytes | os.PathLike[str]) -> int:
        """The index of the file of this name.

        Args:
            name: Path relative to the folder that was packed, as `name` gives it.

        Returns:
            The index, for which `dataset[index]` are the file's bytes.

        Raises:
            KeyError: There is no such file.

        Example:
            >>> import stallscope
            >>> stallscope.PackedDataset("texts.pack").index("fr/bonjour.txt")
            1
        """
        found = self._pack.find(os.fsencode(name))
        if found is None:
            raise KeyError(name)
        return found

    # What a cache keeps, and what it makes a sample of: stallscope.DataLoader calls these.

    def fetch(self, index):
        return self._pack.read(within(index, len(self)), b"")

    def _fetch_each(self, indices):
        return self._pack.read_each([within(index, len(self)) for index in indices])

    def decode(self, data):
        return bytes(data)

    def had(self, index):
        self._pack.pass_by(within(index, len(self)))

    def __repr__(self):
        return f"PackedDataset({os.fsdecode(self._pack.path)!r}, {len(self)} files)"
