"""Which data set it is, as bytes: another one, or the same one changed, never gets what was kept of it."""

import itertools
import os
from hashlib import blake2b
from time import perf_counter_ns

from stallscope.data.cache import stored_form
from stallscope.data.cache.reader import seen_of

from . import digests

# Files between the first and the last that are looked at, too, where it is known which they are.
_BETWEEN = 6
# Of the time that a sample takes from memory, what looking at its file may take; and what it may take anyhow, as where the
# kernel has the file's attributes, which is less than any decoding.
_LOOK_COSTS, _LOOK_NS = 0.1, 10_000
# What makes a sample where a data set fetches and decodes by itself.
PARTS = ("fetch", "decode", "augment", "__getitem__")


def of(cut, state=None, key=None, generation=0):
    """For a cut of `cut.of`. Where files are opened, each look-up names its file besides.

    `state`: of the data set, as `state_of` has it; or else `key`, the user's word for it. Every `generation` but the first
    belongs to this job alone."""
    base, digest = cut.base, blake2b(digest_size=32)
    kind = type(base)

    def add(*words):
        digest.update(repr(words).encode("utf-8", "surrogateescape"))

    add("in parts" if cut.in_parts else "files", kind.__module__, kind.__qualname__, cut.samples, cut.evidence)
    if generation:
        add("generation", generation, job())
    if key is not None:
        add("key", key)
        return digest.digest()
    if cut.in_parts:
        add("state", _known_by(base, state))
        return digest.digest()
    between = _paths_between(base)
    for path in (*between, *cut.evidence):
        began_ns = perf_counter_ns()
        try:
            status = os.stat(path)
        except OSError as error:
            add(path, error.errno)
        else:
            # The others were opened just now, which makes it cheap where files lie on another machine.
            if path in between or not between:
                cut.look_ns.append(perf_counter_ns() - began_ns)
            add(path, seen_of(status))
    return digest.digest()


def looks_at_files(cut, key):
    """Whether each use of a sample looks at size and time of change of its file: where `of` found that it costs less than a
    tenth of what a sample takes from memory, or next to nothing. What the first who asked found holds for all, as they share
    what is kept."""
    cheap = bool(cut.look_ns) and min(cut.look_ns) < max(_LOOK_NS, _LOOK_COSTS * cut.sample_ns)
    return stored_form.agreed({"looks": cheap}, key + b"looks")["looks"]


def state_of(base):
    """The `State` of a data set that fetches and decodes by itself: whatever these two can see."""
    return digests.of(base, PARTS)


def glance_at(base):
    """As `state_of`, but of bulky contents no more than shows in microseconds; for this process alone."""
    return digests.of(base, PARTS, glance=True)


def _known_by(base, state):
    """In bytes. Where not all could be digested, they are of no other data set, process, or content that cannot be digested."""
    if state.why is None:
        return state.digest + state.drawn
    return b"%s %d %s" % (process(), _number_of(base, state), state.digest + state.drawn)


_numbers: dict = {}
_made = itertools.count(1)


def _number_of(base, state):
    of, known, number = _numbers.get(id(base), (None, None, 0))
    # Another object may have come into the place of one that is gone.
    if known is None or of() is not base or not known.has_parts_of(state):
        number = next(_made)
        key = id(base)
        _numbers[key] = digests.reference(base, lambda _: _numbers.pop(key, None)), state, number
    return number


def process():
    """16 bytes that no other process of this machine has ever had."""
    return _process(os.getpid())


def job():
    """16 bytes that ranks of one job have in common on a node, where a launcher started them, and other jobs do not."""
    return _process(os.getppid() if "LOCAL_RANK" in os.environ else os.getpid())


def _process(pid):
    # A number of a process that is gone may come again.
    with open(f"/proc/{pid}/stat", "rb") as file:
        started = file.read().rpartition(b")")[2].split()[19]
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read()
    return blake2b(b"%d %s %s" % (pid, started, boot), digest_size=16).digest()


def _paths_between(base):
    """Of data sets that list their files, as those of torchvision do: pairs of a path and a class, or paths."""
    for name in ("samples", "imgs", "paths", "files"):
        listed = getattr(base, "__dict__", {}).get(name)
        if type(listed) not in (list, tuple) or len(listed) < 3:
            continue
        found = []
        for one in listed[1 :: max(1, len(listed) // (_BETWEEN + 1))][:_BETWEEN]:
            one = one[0] if isinstance(one, (list, tuple)) and one else one
            if isinstance(one, (str, bytes, os.PathLike)):
                found.append(os.fsdecode(one))
        return found
    return []
