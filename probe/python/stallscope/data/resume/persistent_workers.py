"""Loaders whose workers stay from epoch to epoch: torch draws their seed once, when they begin, from the generator that
training's order of samples may come from. For others it draws one with each pass.

A job that is taken up starts workers anew that its predecessor had already. So that their seed is not drawn again, a
position says which loaders beside the trained one had theirs, and the first of each kind that begins draws it elsewhere.
"""

import contextlib
import gc
import weakref

import torch.utils.data

from stallscope import _notices
from stallscope.data.locks import ForkSafeLock

from .iteration import torchs_iterator

_begun: "weakref.WeakSet" = weakref.WeakSet()
# Those without, which draw a seed with each pass.
_passing: "weakref.WeakSet" = weakref.WeakSet()
_passing_lock = ForkSafeLock()
# By the loader that took a position up, which begins as that says itself. What none has taken goes with the loader, and is nothing
# to the next job in this process.
_before: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


class _Before:
    """Of the job whose position was taken up. `waiting`: kinds of loaders beside the trained one whose workers stayed, each with the seed
    that these had; `passing`: what the loaders read whose workers did not. `warned`: what loaders read that a warning named."""

    def __init__(self, passing):
        self.waiting = []
        self.passing = [list(one) for one in passing]
        self.warned = []

    def waiting_reads(self):
        return [_read(kind) for kind, _ in self.waiting]

    def warn_of(self, read, stays):
        if read not in self.warned:
            self.warned.append(read)
            _warn(f"a loader of {read[0]}", stays)


def watch():
    """Once a process, before a position is asked for: loaders that began before are not known."""
    original = torch.utils.data.DataLoader._get_iterator
    if hasattr(original, "_stallscope_watches"):
        return

    def _get_iterator(self):
        if self.generator is not None:
            return original(self)
        if not _stays(self):
            _passes(self)
            return original(self)
        seed = _taken(self)
        # Past torch's own guard. Samplers have a generator of their own by now.
        if seed is not None:
            self.__dict__["generator"] = torch.Generator().manual_seed(seed)
        try:
            iterator = original(self)
        finally:
            self.__dict__["generator"] = None
        _begun.add(self)
        return iterator

    _get_iterator._stallscope_watches = True
    torch.utils.data.DataLoader._get_iterator = _get_iterator


def state(trained):
    """For its position: whether its workers stay, and of all other loaders what `_Before` has, as plain data; but of those of its kind,
    which are what a script has made anew."""
    own = _kind(trained)
    others = [(one, torchs_iterator(getattr(one, "_iterator", None))) for one in list(_begun) if _kind(one) != own]
    with _passing_lock:
        passing = list(_passing)
    kinds = [one for one in map(_kind, passing) if one != own]
    return {
        "workers_stay": _stays(trained),
        "persistent_loaders": sorted([*_kind(one), iterator._base_seed] for one, iterator in others if iterator is not None),
        "passing_loaders": sorted(map(list, {tuple(_read(one)) for one in kinds})),
    }


def take_up(trained, position):
    """`position`: what `trained` takes up, with what `state` gave in that job."""
    drawn = position.get("persistent_loaders", ())
    if drawn:
        # Loaders of an earlier attempt in this process, which are not going to be iterated.
        gc.collect()
    living = [_kind(one) for one in list(_begun) if getattr(one, "_iterator", None) is not None and one is not trained]
    _before[trained] = before = _Before(position.get("passing_loaders", ()))
    for *kind, seed in sorted(drawn, key=lambda one: list(one[:-1]) not in living):
        found = _nearest(kind, living)
        if found is not None:
            # It has its workers still.
            living.remove(found)
        else:
            before.waiting.append((kind, seed))
    stays = _stays(trained)
    if position.get("workers_stay", stays) != stays:
        _warn("the trained loader", stays)


def _warn(whose, stays):
    had, has = ("went with each epoch, or were none,", "stay") if stays else ("stayed from epoch to epoch", "do not")
    _notices.warn(
        f"stallscope: the workers of {whose} {had} in the job that saved the checkpoint and {has} here; torch draws a seed when workers begin, so that later epochs may have another "
        "order than in a job that was never stopped: resume with the same persistent_workers=",
        5,
    )


def _taken(loader):
    """The seed of a loader of this kind that had begun; None: this one has not."""
    kind = _kind(loader) if _before else []
    read = _read(kind)
    befores = _concerned(kind, lambda before: read in before.passing or read in before.waiting_reads())
    waiting = [one for before in befores for one in before.waiting]
    nearest = _nearest(kind, [other for other, _ in waiting])
    for found in waiting:
        if found[0] == nearest:
            _forget(found)
            return found[1]
    for before in befores:
        before.warn_of(read, True)
    return None


def _passes(loader):
    """A loader whose workers do not stay draws a seed."""
    if _before:
        kind = _kind(loader)
        read = _read(kind)
        for before in _concerned(kind, lambda before: read in before.waiting_reads() and read not in before.passing + before.warned):
            before.warn_of(read, False)
    # Its class may say that it has no hash.
    with contextlib.suppress(TypeError), _passing_lock:
        _passing.add(loader)


def _concerned(kind, concerns):
    """The `_Before` that this `concerns`: none where a loader of this kind took a position up."""
    if not any(map(concerns, list(_before.values()))):
        return []
    # Of those that took a position up, some may only not have been collected yet.
    gc.collect()
    return [] if kind in map(_kind, list(_before)) else [one for one in list(_before.values()) if concerns(one)]


def _forget(found):
    """Several that took a position up together say the same of those beside them."""
    for before in list(_before.values()):
        if found in before.waiting:
            before.waiting.remove(found)


def _nearest(kind, kinds):
    """The same one of them, else one that reads the same in other batches or by another number of workers, which a job may change when it
    goes on."""
    return kind if kind in kinds else next((one for one in kinds if _read(one) == _read(kind)), None)


def _stays(loader):
    return bool(loader.persistent_workers and loader.num_workers > 0)


def _kind(loader):
    try:
        # Not by len(): what stands for a data set while workers begin has none of its own.
        samples = loader.dataset.__len__()
    except Exception:
        samples = -1
    return [type(loader.dataset).__name__, samples, loader.batch_size or 0, loader.num_workers]


def _read(kind):
    """The class and the number of samples of what a loader of this kind reads."""
    return kind[:2]
