"""The cache's knobs, where the shim is on: `cache.bytes`, and with fetchers `cache.fetchers` and `cache.window`."""

import sys
import weakref

from stallscope import _native
from stallscope.data.prefetch import manager

from . import budget

_LEAST_BYTES = 1 << 20


class BytesKnob:
    """Turns the part of the pool that is one loader's. The registry of knobs keeps it alive, so it holds nothing itself."""

    def __init__(self, store):
        self.store = weakref.ref(store)
        self.in_force = 0

    def show(self, number, own_bytes):
        """Shows it as the knob of the loader with this number, of which `own_bytes` are in force."""
        from stallscope._hooks import knobs

        # A script that asks for more may have that.
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


class FetchersKnob:
    """Turns how many fetchers there are, and how many batches beyond torch's own they read for."""

    def __init__(self, of):
        self.ahead = weakref.ref(of)

    def show(self, number):
        from stallscope._hooks import knobs

        one = self.ahead()
        count = knobs.register(
            "cache.fetchers", "processes", one.requested, 0, manager.MOST_FETCHERS, self._turn_count, number
        )
        window = knobs.register("cache.window", "batches", one.window, 0, manager.MOST_WINDOW, self._turn_window, number)
        # They may stop by themselves.
        one.turned = count.is_now
        for knob in (count, window):
            weakref.finalize(one, knobs.gone_unless_replaced, knob).atexit = False

    def _turn_count(self, value):
        one = self.ahead()
        if one is None or one.stopped:
            why = one.stopped if one is not None else "the loader is gone"
            return 0, "refused", f"No sample is fetched ahead any more: {why}."
        one.want(value)
        return value, "applied", ""

    def _turn_window(self, value):
        one = self.ahead()
        if one is None:
            return 0, "refused", "The loader is gone."
        one.window = value
        return value, "applied", ""


def number_of(loader):
    """The loader's number in this process; None where nobody watches."""
    loaders = sys.modules.get("stallscope._hooks.loader_registry")
    return loaders.number_of(loader) if loaders is not None and _native.enabled() else None
