"""Opens the pack of a data set, and says where it has less than there is."""

import os

from stallscope import _native, _notices
from stallscope.checkpoint.errors import printable
from stallscope.data.cache import budget

# Of a size in the native module.
_MOST_BYTES = 2**64 - 1


def opened(path, level, local, local_limit):
    """The reader of the pack; PackError. `level`: of the frame that is warned."""
    if local is None and local_limit is not None:
        raise ValueError(f"local_limit={local_limit!r} is how much of a folder local= may be taken: name that as well")
    limit = None if local_limit is None else min(budget.size(local_limit, "local_limit"), _MOST_BYTES)
    reader = _native.PackReader(os.fsencode(path), local=None if local is None else os.fsencode(local), local_limit=limit)
    if reader.newer:
        _notices.warn(
            f"stallscope: {os.fspath(path)!r} has {reader.newer} chunks that are not in its snapshot: packing goes on, or was "
            "interrupted. Samples are those of the snapshot",
            level + 1,
        )
    if reader.other_deletions:
        _notices.warn(f"stallscope: {printable(reader.other_deletions)}", level + 1)
    return reader


def within(index, length):
    """`index` as a list takes it, negative ones from the end; IndexError."""
    number = index.__index__()
    if number < 0:
        number += length
    if not 0 <= number < length:
        raise IndexError(f"index {index} is out of range of {length} samples")
    return number
