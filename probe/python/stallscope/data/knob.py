"""The cache's bytes as a knob, `cache.bytes`, where the shim is on."""

import sys
import weakref

from stallscope import _native

from . import budget

_LEAST_BYTES = 1 << 20


class BytesKnob:
    """Turns the part of the pool that is one loader's. Whoever has knobs holds it, so it holds nothing itself."""

    def __init__(self, store):
        self.store = weakref.ref(store)
        self.in_force = 0

    def show(self, number, own_bytes):
        """Shows it as the knob of the loader with this number, of which `own_bytes` are in force."""
        from stallscope._hooks import knobs

        # Whoever wrote more into the script may have that.
        most = max((budget.memory_bytes() or 0) // 2, own_bytes, _LEAST_BYTES)
        least = min(_LEAST_BYTES, own_bytes)
        self.in_force = own_bytes
        knob = knobs.register("cache.bytes", "bytes", own_bytes, least, most, self._turn, number)
        # A loader that is built alike for each epoch has the same knob again and again.
        weakref.finalize(self.store(), knobs.gone_unless_replaced, knob).atexit = False

    def _turn(self, value):
        store = self.store()
        if store is not None and store.resize(value):
            self.in_force = value
            return value, "applied", ""
        return self.in_force, "refused", "The pool does not answer."


def number_of(loader):
    """The loader's number in this process; None where nobody watches."""
    loaders = sys.modules.get("stallscope._hooks.loaders")
    return loaders.number_of(loader) if loaders is not None and _native.enabled() else None
