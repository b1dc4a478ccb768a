"""A Python that has imported torch, and runs scripts in children of its own: torch takes seconds to import.

usage: warm.py, a line of JSON for each script: its command line without the interpreter, environment, and files for what it
prints. Answers with its pid and, once it has ended, with its exit code. Ends with its input.
"""

import json
import os
import runpy
import sys

import torch  # noqa: F401
import torch.utils.data  # noqa: F401


def become(asked):
    """What an interpreter is that has just been started with this script."""
    for descriptor, path in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["command"]
    # Where the script lies, and before the libraries what PYTHONPATH names.
    named = [path for path in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [os.path.dirname(os.path.realpath(sys.argv[0])), *named]


def serve():
    """The script that a child of ours is to run; None for ourselves, once nothing more is asked."""
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            become(asked)
            return asked["command"][0]
        print(json.dumps(child), flush=True)
        print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
    return None


script = serve()
if script is not None:
    # It ends as the interpreter does, with all that happens then.
    runpy.run_path(script, run_name="__main__")
