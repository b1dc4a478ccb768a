"""How many bytes a cache may keep, from what the user says."""

import operator
import re

from stallscope._hooks import headroom

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_UNITS.update({"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12})
# As in `--memory 8g` of the program, which reads sizes alike.
_UNITS.update({"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40})
_BY_NAME = {name.lower(): count for name, count in _UNITS.items()}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse(value):
    """Bytes of `value`, a number or a string such as "8GiB". ValueError where it is neither, or more than there is."""
    argument = f"cache={value!r}"
    if isinstance(value, str):
        match = _FORM.fullmatch(value)
        unit = match and _BY_NAME.get(match[2].lower())
        if not unit:
            raise ValueError(f'{argument}: give bytes, or a string such as "8GiB" (KiB, MiB, GiB, KB, MB, GB)')
        count = int(float(match[1]) * unit)
    else:
        try:
            count = operator.index(value) if not isinstance(value, bool) else None
        except TypeError:
            count = None
        if count is None:
            raise ValueError(f'{argument}: give bytes as a whole number, or a string such as "8GiB"')
    if count <= 0:
        raise ValueError(f"{argument}: a cache has to hold something; leave the argument out for none")
    memory = memory_bytes()
    if memory is not None and count > memory:
        raise ValueError(f"{argument}: there are {memory / (1 << 30):.1f} GiB of memory for this job; give less")
    return count


def memory_bytes():
    """Memory that this job could have at most, the machine's or its group's; None where nobody says."""
    try:
        with open("/proc/meminfo") as file:
            memory = int(next(line for line in file if line.startswith("MemTotal:")).split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return None
    return min([memory, *headroom.group_limits()])
