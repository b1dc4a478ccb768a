"""Where the pool of this user is met, and how it is started."""

import sys

from stallscope import _native, _pool, _runtime
from stallscope._hooks.knobs import raised_by_signal

from . import own_children


class NoPool(Exception):
    """A sentence, without its end, that says why there is none."""


def space(key, samples, capacity_bytes, policy):
    """The part of the pool that is the data set's with this key; NoPool."""
    make = getattr(_native, "Space", None)
    if make is None:
        raise NoPool("this build of stallscope has no pool")
    if not sys.executable:
        raise NoPool("it is not known which Python runs here")
    try:
        with own_children.unheard():
            return make(_runtime.folder(), _pool.command(), key, samples, capacity_bytes, policy)
    except (OSError, ValueError, RuntimeError) as error:
        if raised_by_signal(error):
            raise
        raise NoPool(f"{error}") from None
