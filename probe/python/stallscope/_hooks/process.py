"""This process in the collector's eyes: who it is, and what could not be measured in it."""

import atexit
import json
import os
import sys

from stallscope import _native, _node

from . import ranks

# 1.5 MiB of records: a second and more of a very fast loader.
_LANE_RECORDS = 32768
_MAX_ARGUMENTS = 64
_MAX_ARGUMENT_LENGTH = 400
# Half of what a line to the collector may have.
_MAX_ARGUMENTS_BYTES = 32 * 1024

_started = False
_kind = "other"


def start():
    """Greets the collector; once a process."""
    global _started
    if _started:
        return
    torch = sys.modules.get("torch")
    greeting = {
        **ranks.from_environment(),
        "argv": _arguments(),
        "torch": str(getattr(torch, "__version__", "")) or None,
        "python": sys.version.split()[0],
    }
    capacity = int(os.environ.get("STALLSCOPE_LANE_RECORDS", _LANE_RECORDS))
    _native.configure(os.environ["STALLSCOPE_SOCKET"], json.dumps(greeting), capacity)
    introduction = _node.introduction()
    if introduction:
        _native.introduce(*introduction)
    _started = True
    _native.poll()
    atexit.register(_native.bye)


def _arguments():
    """The command line, cut to what a greeting may hold."""
    arguments, free_bytes = [], _MAX_ARGUMENTS_BYTES
    for argument in (getattr(sys, "orig_argv", None) or sys.argv)[:_MAX_ARGUMENTS]:
        argument = text(argument)[:_MAX_ARGUMENT_LENGTH]
        free_bytes -= len(json.dumps(argument, ensure_ascii=False).encode())
        if free_bytes < 0:
            break
        arguments.append(argument)
    return arguments


def text(value):
    """What isn't text in `value`, as in a file name of other days, shows as question marks."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def tell(**fact):
    """Sends a fact; None stands for what is not known."""
    _native.fact(json.dumps(fact))


def tell_kind(kind):
    """`kind`: trainer, worker or other."""
    global _kind
    _kind = kind
    tell(fact="kind", kind=kind, **ranks.current())


def tell_rank():
    """torch.distributed knows the rank now."""
    try:
        tell_kind(_kind)
    except Exception as error:
        disable(f"The rank is unknown: {type(error).__name__}: {error}.")


def unavailable(sentence):
    """Something cannot be measured, and the rest goes on."""
    tell(fact="unavailable", what=text(sentence))


def disable(sentence):
    """Nothing more is measured in this process."""
    _native.disable(text(sentence))
