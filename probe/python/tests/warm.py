"""A Python that has imported torch, and runs scripts in children of its own: torch takes seconds to import.

usage: warm.py, a line of JSON for each request, which is answered by one: a script to start (its command line without the
interpreter, environment, and files for what it prints) by its pid, a pid to "poll" or "wait" for by its exit code, null while
it runs. Ends with its input.
"""

import importlib
import json
import os
import runpy
import sys

import torch
import torch.utils.data

# What a newer torch imports as soon as an optimizer, a process group or a mesh is made.
if not torch.__version__.startswith("1."):
    for late in ("_dynamo", "distributed.checkpoint", "distributed.fsdp", "distributed.tensor"):
        importlib.import_module(f"torch.{late}")


def become(asked):
    """What an interpreter is that has just been started with this script."""
    if asked["group"]:
        os.setsid()
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
    # The shim hooks at once what it finds imported.
    if any(os.path.exists(os.path.join(path, "sitecustomize.py")) for path in named):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def ended(child, options):
    """The exit code of a child; None while it runs."""
    pid, status = os.waitpid(child, options)
    return os.waitstatus_to_exitcode(status) if pid else None


def serve():
    """The script that a child of ours is to run; None for ourselves, once nothing more is asked."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "poll" in asked:
            answer = ended(asked["poll"], os.WNOHANG)
        elif "wait" in asked:
            answer = ended(asked["wait"], 0)
        else:
            answer = os.fork()
            if answer == 0:
                become(asked)
                return asked["command"][0]
        print(json.dumps(answer), flush=True)
    return None


script = serve()
if script is not None:
    # It ends as the interpreter does, with all that happens then.
    runpy.run_path(script, run_name="__main__")
