"""Whether an interpreter that this process starts finds this package.

The launcher brings it into the job by PYTHONPATH, and it stays off the path of modules. A script may set PYTHONPATH to something else for its own programs.
Then workers that are spawned, or forked by a server that is, cannot unpickle what names a class of ours.
"""

import os
import sys
from importlib.machinery import PathFinder

_PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
NOT_FOUND = "the script has changed PYTHONPATH or Python's flags leave it out, so that processes which are not forked from it do not find stallscope (install it beside torch)"


def by_workers(start_method):
    """Whether workers that are started by this method find it."""
    return start_method in (None, "fork") or _by_the_launchers_path() or _by_the_path_of_modules()


def _by_the_launchers_path():
    # They have this interpreter's flags, under which it is not looked at, or nothing of it imported.
    if sys.flags.ignore_environment or sys.flags.no_site:
        return False
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return "STALLSCOPE_SOCKET" in os.environ and os.path.join(_PACKAGE, "_inject") in map(os.path.realpath, filter(None, entries))


def _by_the_path_of_modules():
    # A worker gets this process's.
    found = PathFinder.find_spec("stallscope", sys.path)
    return found is not None and _PACKAGE in map(os.path.realpath, found.submodule_search_locations or ())
