"""Where a sample is cut: which of what it is made from may be kept, the same for every use of it.

Only what comes before random augmentation may be. A data set says so by `fetch(index) -> bytes` and
`decode(bytes) -> sample`, or by `decode(bytes) -> decoded` and `augment(decoded) -> sample`. Otherwise two of its
samples are made on trial: where each opens one file, or as many as the other, and none of the other's, the cut is these files.
"""

import io
import os
import stat
from time import perf_counter_ns

import torch.utils.data

from stallscope._hooks import outline
from stallscope._hooks.knobs import raised_by_signal

from . import open_hook, sandbox, split_parts
from .equality import alike

# Of a file of this size and more at least half has to be read, or a cache would read more than the data set does.
_WHOLE_BYTES = 64 << 10
# A sample that opens more is read as ever: frames of a video, say.
_MOST_FILES = 64
# Of a connection that counts what was sent, in the process that has it.
_ENCRYPTED = "SSLSocket"


class NoCut(Exception):
    """A sentence, without its end, that says why there is none."""


class Cut:
    """Where the samples of a data set are cut."""

    def __init__(self, base, samples, in_parts, evidence, length, augments=False, decoded=None, sample_ns=0, files=1):
        # The data set behind subsets, whose indices are the samples' ids, and how many it has.
        self.base = base
        self.samples = samples
        # Whether that data set fetches and decodes by itself.
        self.in_parts = in_parts
        # What tells it from others: paths of files, or digests of what was fetched.
        self.evidence = evidence
        # How many of them are drawn.
        self.length = length
        # Whether its samples are augmented after they are decoded.
        self.augments = augments
        # Of decoded samples the evidence, and the figures that say whether to keep them; or why they can't be.
        self.decoded = decoded
        # Where samples open files: how many each, and how long it took to make one of a file's bytes that were in memory.
        self.files = files
        self.sample_ns = sample_ns
        # And how long it took to look at some of the files.
        self.look_ns = []


def base_of(dataset):
    """The data set that `dataset` is a subset of, or itself."""
    while type(dataset) is torch.utils.data.Subset:
        dataset = dataset.dataset
    return dataset


def base_index(dataset, index):
    """The index in `base_of(dataset)`."""
    while type(dataset) is torch.utils.data.Subset:
        index = dataset.indices[index]
        dataset = dataset.dataset
    return index


def has_parts(base):
    """Whether `fetch` and `decode` stand for its samples: not those that a class inherits whose own `__getitem__` may change them, or
    that it passes on of what it wraps."""
    if not (callable(getattr(base, "fetch", None)) and callable(getattr(base, "decode", None))):
        return False
    places = [_defined_at(base, name) for name in ("fetch", "decode")]
    if None in places:
        return False
    return not split_parts.has_getitem(base) or min(places) <= _defined_at(base, "__getitem__")


def _defined_at(base, name):
    """How far up among its classes; None where it is none's."""
    if name != "__getitem__" and name in getattr(base, "__dict__", ()):
        return 0
    return next((place for place, kind in enumerate(type(base).__mro__) if name in vars(kind)), None)


def of(dataset, start_method, most_bytes, of_files=False):
    """The cut of `dataset`, of samples of so many bytes at most; NoCut. `start_method`: of workers, None without. `of_files`: whether
    it is to make its samples by itself, whatever parts it has."""
    base = base_of(dataset)
    try:
        length, samples = len(dataset), len(base)
    except Exception as error:
        if raised_by_signal(error):
            raise
        raise NoCut(f"its length is not known ({type(error).__name__}: {error})") from None
    if length < 2:
        raise NoCut("it has fewer than two samples")
    # In this order: a data set may open something as it is asked for what it lacks.
    in_parts = not of_files and has_parts(base)
    connected = outline.connections(dataset)
    # Where the script asks for it, what it fetches may come over one that any process may use.
    if connected and (of_files or any(_ENCRYPTED in one for one in connected)):
        raise NoCut(f"it holds {connected[0]}, which samples that are made on trial would use beside the job; open it when the first sample is made")
    trial = _fetches if in_parts else _opens
    outcome = sandbox.tried(trial, dataset, start_method, most_bytes, cut_off=of_files)
    if "why" in outcome:
        raise NoCut(outcome["why"])
    return Cut(base, samples, in_parts, outcome.pop("evidence"), length, **outcome)


def _fetches(dataset, most_bytes):
    base = base_of(dataset)
    return split_parts.tried(base, len(base))


def _opens(dataset, most_bytes):
    indices = [0, len(dataset) - 1]
    put_back = sandbox.generators(dataset)
    try:
        first, last = (_Watch(dataset, index, put_back) for index in indices)
        if len(first.paths) != len(last.paths):
            # Something may be opened with the first sample of all, and never again.
            first = _Watch(dataset, indices[0], put_back)
        for index, watch in zip(indices, (first, last)):
            why = watch.why(index)
            if why:
                return {"why": why}
        if len(first.paths) != len(last.paths):
            return {"why": f"sample {indices[0]} opens {len(first.paths)} files and sample {indices[1]} opens {len(last.paths)}"}
        if first.paths == last.paths:
            return {"why": "all its samples are in one file" if len(first.paths) == 1 else "all its samples are in the same files"}
        common = set(first.paths).intersection(last.paths)
        if common:
            return {"why": f"samples {indices[0]} and {indices[1]} both open {min(common)}"}
    except Exception as error:
        return {"why": f"a sample could not be made on trial ({type(error).__name__}: {error})"}
    held = {}
    for path in last.paths:
        held[path], why = _whole(path, most_bytes)
        if why:
            return {"why": why}
    if sum(map(len, held.values())) > most_bytes:
        return {"why": f"sample {indices[1]} does not fit into the cache"}
    try:
        watch = _Watch(dataset, indices[1], put_back, held)
    except Exception as error:
        return {"why": f"it needs the file itself, not its bytes ({type(error).__name__}: {error})"}
    if any(file.lacked for file in watch.given):
        return {"why": "it needs the file itself, not its bytes (it asks for its descriptor, or for another part of it)"}
    if watch.paths != last.paths:
        return {"why": "a sample does not open the same file again" if len(last.paths) == 1 else "a sample does not open the same files again"}
    if not alike(watch.sample, last.sample):
        again = _Watch(dataset, indices[1], put_back)
        # Others are made anew each time, and say nothing.
        if alike(again.sample, last.sample):
            return {"why": "it makes another sample of a file's bytes than of the file"}
    if any(watch.reads_a_part_of(path, data) for path, data in held.items()):
        return {"why": "it reads only a part of its files"}
    return {"evidence": [*first.paths, *last.paths], "sample_ns": watch.took_ns, "files": len(last.paths)}


def _whole(path, most_bytes):
    """All that is in the file, or None and why it is none to keep."""
    try:
        # A pipe that has come to its place is not waited for.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            described = os.fstat(file.fileno())
            if not stat.S_ISREG(described.st_mode) or not 0 < described.st_size <= most_bytes:
                return None, f"{path} is no file that fits into the cache"
            data = file.read()
    except OSError as error:
        return None, f"{path} cannot be read ({error})"
    if len(data) != described.st_size:
        return None, f"{path} has not as many bytes as its size says"
    return data, ""


class _Watch:
    """Makes a sample and notes what it opens; gives it the bytes that are there already for a path."""

    def __init__(self, dataset, index, put_back=None, held=()):
        self.paths = []
        self.held = dict(held)
        self.given = []
        open_hook.install()
        if put_back is not None:
            put_back()
        began_ns = perf_counter_ns()
        self.sample = open_hook.made_by(self, lambda: dataset[index])
        self.took_ns = perf_counter_ns() - began_ns

    def opened(self, original, args, kwargs):
        try:
            path = open_hook.path_of(*args, **kwargs)
        except TypeError:
            path = None
        self.paths.append(path)
        if path not in self.held:
            return original(*args, **kwargs)
        self.given.append(_Reached(self.held[path], open_hook.name_of(*args, **kwargs), path))
        return self.given[-1]

    def why(self, index):
        """Why these opens are none to cut at; empty where they are."""
        if not self.paths:
            return f"sample {index} opens no file through Python's open(), and it has no fetch() and decode() of its own"
        if len(self.paths) > _MOST_FILES:
            return f"sample {index} opens {len(self.paths)} files, and it has no fetch() and decode() of its own"
        if None in self.paths:
            return f'sample {index} opens a file in another way than "rb", or by a path of a class of its own'
        return ""

    def reads_a_part_of(self, path, data):
        reached = max((file.reached for file in self.given if file.path == path), default=0)
        return len(data) >= _WHOLE_BYTES and 2 * reached < len(data)


class _Reached(open_hook.Held):
    """Knows how far it was read."""

    def __init__(self, data, name, path):
        super().__init__(data, name)
        self.path = path
        self.reached = 0


def _reaching(name):
    plain = getattr(open_hook.Held, name)

    def read(self, *args):
        result = plain(self, *args)
        self.reached = max(self.reached, self.tell())
        return result

    return read


for _name in ("read", "read1", "readinto", "readinto1", "readline", "readlines", "__next__"):
    if hasattr(io.BytesIO, _name):
        setattr(_Reached, _name, _reaching(_name))
