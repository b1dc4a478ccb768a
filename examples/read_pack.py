"""Lists and extracts a pack of Stallscope's in plain Python: what docs/packs.md says is all that it takes.

    python examples/read_pack.py PACK             lists names, sizes and labels
    python examples/read_pack.py PACK FOLDER      extracts into a new folder

It reads the chunks alone, without the snapshot, and a few MB/s: the checksum is computed in Python. Compressed packs take
Python 3.14, or `pip install zstandard`. Use it to see how the format works, or as the start of a reader in another
language; `stallscope pack` does the same at the disk's speed.
"""

import io
import os
import struct
import sys
from pathlib import Path

try:
    from compression import zstd  # of Python 3.14 and later
except ImportError:
    try:
        import zstandard as zstd  # pip install zstandard
    except ImportError:
        zstd = None

HEADER = struct.Struct("<8sII16s16s12xI")
ENTRY = struct.Struct("<QQQqIIHB5x")
FOOTER = struct.Struct("<QQII16sQ8s4xI")
DELETED = struct.Struct("<8sII16sQII12xI")
MARKS = struct.Struct("<16sI")
NO_LABEL = 0xFFFFFFFF
AS_IT_IS, ZSTD = 0, 1
MOST_EXPANDED = 64 << 20


class Damaged(Exception):
    """A sentence that names the chunk and what is wrong with it."""


class Lacking(Exception):
    """What this program cannot do here, in a sentence."""


def _table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


TABLE = tuple(_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def check(is_right, chunk, what):
    if not is_right:
        raise Damaged(f"{chunk} is damaged: {what}")


def deleted(pack):
    """By the id of a chunk: a bit for each of its records, set if that is deleted."""
    path = Path(pack, "deleted")
    if not path.exists():
        return {}
    data = path.read_bytes()
    check(len(data) >= DELETED.size, path, "it is cut")
    magic, version, _, _, size, count, seal, own_seal = DELETED.unpack_from(data)
    check(magic == b"STLPDEL\0" and version == 1 and own_seal == crc32c(data[:60]), path, "its header is another one")
    check(size == len(data) and seal == crc32c(data[DELETED.size :]), path, "its marks have another checksum")
    marks, at = {}, DELETED.size
    for _ in range(count):
        chunk_id, records = MARKS.unpack_from(data, at)
        end = at + MARKS.size + (records + 7) // 8
        marks[chunk_id] = int.from_bytes(data[at + MARKS.size : end], "little")
        at = end
    return marks


def expanded(frame, count):
    """The bytes of a frame; None where they are not so many. No more than these are made."""
    if zstd is None:
        raise Lacking("this pack is compressed, which takes Python 3.14 or the package zstandard")
    if count > MOST_EXPANDED:
        return None
    try:
        data = zstd.open(io.BytesIO(frame)).read(count + 1)
    except (zstd.ZstdError, EOFError):
        return None
    return data if len(data) == count else None


def records(chunk, marks):
    """Name, bytes and label of each record of a chunk's file that is not deleted, checked."""
    with open(chunk, "rb") as file:
        header = file.read(HEADER.size)
        size = os.fstat(file.fileno()).st_size
        check(size >= HEADER.size + FOOTER.size, chunk, "it is cut")
        magic, version, _, chunk_id, _, seal = HEADER.unpack(header)
        check(magic == b"STLPACK\0" and version == 1, chunk, "it does not begin as a chunk of version 1 does")
        check(seal == crc32c(header[:60]), chunk, "its header has another checksum")
        file.seek(size - FOOTER.size)
        footer = file.read(FOOTER.size)
        index_at, index_bytes, count, index_seal, own_id, bytes_, magic, seal = FOOTER.unpack(footer)
        check(magic == b"STLPEND\0" and seal == crc32c(footer[:60]), chunk, "it is cut, or its footer is damaged")
        check(own_id == chunk_id and bytes_ == size, chunk, "header and footer don't belong together")
        check(index_at + index_bytes + FOOTER.size == size, chunk, "its footer describes no index")
        file.seek(index_at)
        index = file.read(index_bytes)
        check(index_seal == crc32c(index), chunk, "its index has another checksum")
        check(count * ENTRY.size <= index_bytes, chunk, "its footer describes no index")
        entries, names = index[: count * ENTRY.size], index[count * ENTRY.size :]
        gone = marks.get(chunk_id, 0)
        for number, entry in enumerate(ENTRY.iter_unpack(entries)):
            offset, stored, plain, _, seal, label, name_bytes, codec = entry
            name, names = names[:name_bytes], names[name_bytes:]
            if gone >> number & 1:
                continue
            check(codec in (AS_IT_IS, ZSTD), chunk, f"{name!r} is stored in a way that this program does not know")
            check(offset + stored <= index_at, chunk, f"{name!r} lies behind its end")
            file.seek(offset)
            data = file.read(stored)
            check(seal == crc32c(data), chunk, f"{name!r} does not hold what was packed")
            if codec == ZSTD:
                data = expanded(data, plain)
                check(data is not None, chunk, f"{name!r} does not expand to what was packed")
            yield name, data, None if label == NO_LABEL else label


def extract(folder, name, data):
    parts = name.split(b"/")
    if any(part in (b"", b".", b"..") for part in parts) or b"\0" in name:
        raise Damaged(f"{name!r} leads out of the folder")
    path = os.path.join(os.fsencode(folder), *parts)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def main(pack, folder=None):
    # Ids sort by write time: what was written later comes later, and counts.
    newest, marks = {}, deleted(pack)
    if folder is not None:
        os.mkdir(folder)
    for chunk in sorted(Path(pack).glob("*.chunk")):
        for name, data, label in records(chunk, marks):
            newest[name] = len(data), "-" if label is None else label
            if folder is not None:
                extract(folder, name, data)
    if folder is None:
        for name, (size, label) in sorted(newest.items()):
            sys.stdout.buffer.write(b"%s\t%d\t%s\n" % (name, size, str(label).encode()))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (Damaged, Lacking, OSError) as error:
        sys.exit(f"read_pack.py: {error}")
