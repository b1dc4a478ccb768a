"""What an iterator, and so its workers, get in the place of the job's data set."""

import os
import threading
from contextlib import contextmanager
from functools import partial

from torch.utils.data import get_worker_info

from stallscope import _notices


class _Taken:
    """What was taken from a loader for a moment."""

    def __init__(self, loader, own):
        self.loader = loader
        self.own = own
        self.threads = 0


# By the address of the loader.
_taken: dict = {}
_lock = threading.Lock()


_OWN = ("_stallscope_dataset", "_stallscope_maker")


class StandIn:
    """Stands for `dataset`; `maker`: makes its samples where some are kept, else None. All else is the data set's: a subset has a `dataset`, too."""

    def __init__(self, dataset, maker=None):
        self._stallscope_dataset = dataset
        self._stallscope_maker = maker

    def __getattr__(self, name):
        # One that is being made anew in a worker has no data set yet.
        if _OWN[1] not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._stallscope_dataset, name)

    def __setattr__(self, name, value):
        # Of a sampler, say, that knows its loader and is asked while an iterator is made.
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._stallscope_dataset, name, value)

    def __len__(self):
        return len(self._stallscope_dataset)

    def __reduce__(self):
        return type(self), (self._stallscope_dataset, self._stallscope_maker)


@contextmanager
def put_in(loader, served):
    """Within, an iterator that is made, and so its workers, take these attributes in the place of the loader's own. Threads that make
    iterators of one loader at a time take the same, until the last is through."""
    with _lock:
        taken = _taken.setdefault(id(loader), _Taken(loader, {name: loader.__dict__[name] for name in served}))
        taken.threads += 1
        # Past the loader's guard, which is for what users set.
        loader.__dict__.update(served)
    try:
        yield
    finally:
        with _lock:
            taken.threads -= 1
            if taken.threads == 0:
                # Not there in a child that was forked within.
                _taken.pop(id(loader), None)
                loader.__dict__.update(taken.own)


def _as_it_was():
    """A worker is forked within, and a loader that its code names has the data set itself."""
    global _lock
    _lock = threading.Lock()
    for taken in _taken.values():
        taken.loader.__dict__.update(taken.own)
    _taken.clear()


os.register_at_fork(after_in_child=_as_it_was)


class start_of_worker:
    """A worker's init function: the user's, who finds the own data set in `get_worker_info()`."""

    def __init__(self, users):
        self.users = users

    def __call__(self, worker_id):
        info, maker = get_worker_info(), None
        if isinstance(info.dataset, StandIn):
            maker = info.dataset._stallscope_maker
            # Past its own guard, which is for what users set.
            object.__setattr__(info, "dataset", info.dataset._stallscope_dataset)
        if self.users is None:
            return
        if maker is None:
            self.users(worker_id)
        elif not maker.begun(partial(self.users, worker_id)) and worker_id == 0:
            _notices.warn(
                f"stallscope: worker_init_fn makes another data set of {type(info.dataset).__name__}: workers read it without the cache",
                2,
            )
