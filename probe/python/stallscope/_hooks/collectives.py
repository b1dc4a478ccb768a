"""Operations in which a rank waits for the others, as far as the call itself blocks."""

import threading

from stallscope import _native

from . import process
from .patch import replace

_BLOCKING = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)

_here = threading.local()


def hook_collectives(module):
    """`module`: torch.distributed.distributed_c10d."""
    for name in _BLOCKING:
        if hasattr(module, name):
            replace(module, name, _timed)
    if hasattr(module, "init_process_group"):
        replace(module, "init_process_group", _telling_rank)


def _timed(original):
    def collective(*args, **kwargs):
        if getattr(_here, "inside", False):
            return original(*args, **kwargs)
        _here.inside = True
        began_ns = _native.now()
        try:
            return original(*args, **kwargs)
        finally:
            _here.inside = False
            _native.collective(began_ns, _native.now())

    return collective


def _telling_rank(original):
    def init_process_group(*args, **kwargs):
        result = original(*args, **kwargs)
        process.tell_rank()
        return result

    return init_process_group
