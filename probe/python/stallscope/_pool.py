"""The process that owns the cache's pool: native code that is started by the first job that needs it.

Run as a script by `command`, it imports neither the package nor what a job's environment would bring into it.
"""

import os
import sys


def command():
    """The command that starts a pool; the folder that it listens in is added to it."""
    return [sys.executable, "-S", "-E", os.path.abspath(__file__)]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: _pool.py RUNTIME_DIR")
    if __package__:
        from ._native import run_pool
    else:
        from _native import run_pool
    try:
        run_pool(sys.argv[1])
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
