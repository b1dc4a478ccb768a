"""The folder where this user's processes meet."""

import os
import stat


def folder():
    """The same that the collector takes (collector/src/runtime/places.rs); OSError, with a sentence, where there is none."""
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
        raise OSError(f"{folder} cannot be made or belongs to another user; set STALLSCOPE_RUNTIME_DIR to a folder of yours")
    return folder


def _is_ours(folder, user):
    try:
        os.makedirs(folder, mode=0o711 if user == 0 else 0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return False
    return found.st_uid == user and stat.S_ISDIR(found.st_mode)
