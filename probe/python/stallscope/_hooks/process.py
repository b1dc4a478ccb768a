"""This process in the collector's eyes: who it is, and what could not be measured in it."""

import atexit
import json
import os
import sys

from stallscope import _native

from . import ranks

# 1.5 MiB of records: a second and more of a very fast loader.
_LANE_RECORDS = 32768
_MAX_ARGUMENTS = 64
_MAX_ARGUMENT_LENGTH = 400

_started = False
_kind = "other"


def start():
    """Greets the collector; once a process."""
    global _started
    if _started:
        return
    _started = True
    torch = sys.modules.get("torch")
    greeting = {
        **ranks.from_environment(),
        "argv": [argument[:_MAX_ARGUMENT_LENGTH] for argument in _arguments()[:_MAX_ARGUMENTS]],
        "torch": str(getattr(torch, "__version__", "")) or None,
        "python": sys.version.split()[0],
    }
    capacity = int(os.environ.get("STALLSCOPE_LANE_RECORDS", _LANE_RECORDS))
    _native.configure(os.environ["STALLSCOPE_SOCKET"], json.dumps(greeting), capacity)
    _native.poll()
    atexit.register(_native.bye)


def _arguments():
    return [str(argument) for argument in getattr(sys, "orig_argv", None) or sys.argv]


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
        _native.disable(f"The rank could not be told: {type(error).__name__}: {error}.")


def unavailable(sentence):
    """Something cannot be measured, and the rest goes on."""
    tell(fact="unavailable", what=sentence)
