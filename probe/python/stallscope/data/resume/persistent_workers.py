"""Loaders whose workers stay from epoch to epoch: torch draws their seed once, when they begin, from the generator that
training's order of samples may come from.

A job that is taken up starts workers anew that its predecessor had already. So that their seed is not drawn again, a
position says which loaders beside the trained one had theirs, and the first of each kind that begins draws it elsewhere.
"""

import gc
import weakref

import torch.utils.data

_begun: "weakref.WeakSet" = weakref.WeakSet()
# What was taken up: kinds of loaders, each with the seed that its workers had.
_drawn: list = []
# The loaders that took a position up begin as that says.
_themselves: "weakref.WeakSet" = weakref.WeakSet()


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
    others = [one for one in _begun if getattr(one, "_iterator", None) is not None and _kind(one) != own]
    return sorted([*_kind(one), one._iterator._base_seed] for one in others)


def take_up(trained, drawn):
    """`drawn`: what `state` gave, of the job whose position `trained` takes up."""
    _themselves.add(trained)
    if drawn:
        # Loaders of an earlier attempt in this process, which are not going to be iterated.
        gc.collect()
    living = [_kind(one) for one in _begun if getattr(one, "_iterator", None) is not None and one is not trained]
    _drawn.clear()
    for *kind, seed in drawn:
        if kind in living:
            # It has its workers still.
            living.remove(kind)
        else:
            _drawn.append((kind, seed))


def _taken(loader):
    """The seed of a loader of this kind that had begun; None: this one has not."""
    if not _drawn or loader in _themselves:
        return None
    kind = _kind(loader)
    for at, (other, seed) in enumerate(_drawn):
        if other == kind:
            del _drawn[at]
            return seed
    return None


def _kind(loader):
    try:
        # Not by len(): what stands for a data set while workers begin has none of its own.
        samples = loader.dataset.__len__()
    except Exception:
        samples = -1
    return [type(loader.dataset).__name__, samples, loader.batch_size or 0, loader.num_workers]
