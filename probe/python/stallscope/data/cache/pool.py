"""Where the pool of this user is met, and how it is started."""

import os
import stat
import sys

from stallscope import _native, _pool

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
            return make(runtime_dir(), _pool.command(), key, samples, capacity_bytes, policy)
    except (OSError, ValueError, RuntimeError) as error:
        raise NoPool(f"{error}") from None


def runtime_dir():
    """The folder where this user's processes meet, the same that the collector takes."""
    user = os.geteuid()
    own = os.environ.get("XDG_RUNTIME_DIR")
    folder = os.environ.get("STALLSCOPE_RUNTIME_DIR")
    if not folder:
        if user == 0:
            folder = "/run/stallscope"
        elif own and os.path.isdir(own):
            folder = os.path.join(own, "stallscope")
        else:
            places = [f"/tmp/stallscope-{user}", f"/var/tmp/stallscope-{user}", os.path.expanduser("~/.cache/stallscope")]
            # Anybody may have made a folder of that name where all may make some.
            folder = next((place for place in places if _is_ours(place, user)), places[0])
    if not _is_ours(folder, user):
        raise NoPool(f"{folder} cannot be made or belongs to another user; set STALLSCOPE_RUNTIME_DIR to a folder of yours")
    return folder


def _is_ours(folder, user):
    try:
        os.makedirs(folder, mode=0o711 if user == 0 else 0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return False
    return found.st_uid == user and stat.S_ISDIR(found.st_mode)
