"""How many bytes a cache may keep, from what the user says."""

import operator

from stallscope import _native
from stallscope._hooks import headroom, kernel_text


def parse(value, name="cache"):
    """Bytes of `value`, a number or a string such as "8GiB". ValueError where it is neither, or more than there is. `name`: of the argument."""
    count = size(value, name)
    memory = memory_bytes()
    if memory is not None and count > memory:
        raise ValueError(f"{name}={value!r}: there are {_native.memory_in_words(memory)} of memory for this job; give less")
    return count


def size(value, name):
    """The same of what is not in memory."""
    argument = f"{name}={value!r}"
    if isinstance(value, str):
        try:
            count = _native.parse_bytes(value)
        except ValueError:
            raise ValueError(f'{argument}: give bytes, or a string such as "8GiB" (KiB, MiB, GiB, KB, MB, GB)') from None
    else:
        try:
            count = operator.index(value) if not isinstance(value, bool) else None
        except TypeError:
            count = None
        if count is None:
            raise ValueError(f'{argument}: give bytes as a whole number, or a string such as "8GiB"')
    if count <= 0:
        raise ValueError(f"{argument}: a cache has to hold something; leave the argument out for none" if name == "cache" else f"{argument}: give some")
    return count


def memory_bytes():
    """Memory that this job could have at most, the machine's or its group's; None where nobody says."""
    try:
        lines = kernel_text.of("/proc/meminfo").splitlines()
        memory = int(next(line for line in lines if line.startswith("MemTotal:")).split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return None
    return min([memory, *headroom.group_limits()])
