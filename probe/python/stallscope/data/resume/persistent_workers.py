"""Loaders whose workers stay from epoch to epoch: torch draws their seed once, when they begin, from the generator that
training's order of samples may come from.

A job that is taken up starts workers anew that its predecessor had already. So that their seed is not drawn again, a
position says which loaders beside the trained one had theirs, and the first of each kind that begins draws it elsewhere.
"""

import gc
import weakref

import torch.utils.data

from .iteration import torchs_iterator

_begun: "weakref.WeakSet" = weakref.WeakSet()
# By the loader that took a position up, which begins as that says itself: kinds of loaders beside it, each with the seed that its
# workers had. What none has taken goes with the loader, and is nothing to the next job in this process.
_drawn: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


def watch():
    """Once a process, before a position is asked for: loaders that began before are not known."""
    original = torch.utils.data.DataLoader._get_iterator
    if hasattr(original, "_stallscope_watches"):
        return

    def _get_iterator(self):
        if not (self.persistent_workers and self.num_workers > 0) or self.generator is not None:
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
    """Of all such loaders but `trained`, as plain data; and but those of its kind, which are what a script has made anew."""
    own = _kind(trained)
    others = [(one, torchs_iterator(getattr(one, "_iterator", None))) for one in _begun]
    return sorted([*_kind(one), iterator._base_seed] for one, iterator in others if iterator is not None and _kind(one) != own)


def take_up(trained, drawn):
    """`drawn`: what `state` gave, of the job whose position `trained` takes up."""
    if drawn:
        # Loaders of an earlier attempt in this process, which are not going to be iterated.
        gc.collect()
    living = [_kind(one) for one in _begun if getattr(one, "_iterator", None) is not None and one is not trained]
    _drawn[trained] = waiting = []
    for *kind, seed in drawn:
        if kind in living:
            # It has its workers still.
            living.remove(kind)
        else:
            waiting.append((kind, seed))


def _taken(loader):
    """The seed of a loader of this kind that had begun; None: this one has not."""
    if not _drawn:
        return None
    kind = _kind(loader)
    if any(kind == other for waiting in _drawn.values() for other, _ in waiting):
        # Of those that took a position up, some may only not have been collected yet.
        gc.collect()
    if kind in [_kind(one) for one in _drawn]:
        return None
    for waiting in list(_drawn.values()):
        for found in waiting:
            if found[0] == kind:
                _forget(found)
                return found[1]
    return None


def _forget(found):
    """Several that took a position up together say the same of those beside them."""
    for waiting in list(_drawn.values()):
        if found in waiting:
            waiting.remove(found)


def _kind(loader):
    try:
        # Not by len(): what stands for a data set while workers begin has none of its own.
        samples = loader.dataset.__len__()
    except Exception:
        samples = -1
    return [type(loader.dataset).__name__, samples, loader.batch_size or 0, loader.num_workers]
