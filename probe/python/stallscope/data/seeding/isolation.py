"""The process's random generators while samples are made in it: theirs for a moment, and then training's again."""

import threading
from hashlib import blake2b

from stallscope import _random

_here = threading.local()


def apart(make):
    """What `make` returns; the generators are given back to training, once a batch.

    Where the main thread makes samples, nothing else is taken to draw meanwhile. Another thread may make them while
    training draws, and to set the generators back would have training draw the same again: dropout masks that repeat. So they
    go on from where they are, or, where samples were seeded meanwhile, from a state that nothing was drawn from.
    """
    if threading.current_thread() is threading.main_thread():
        before = _random.capture()
        try:
            return make()
        finally:
            _random.restore(before)
    shared = _here.shared = _Shared()
    try:
        return make()
    finally:
        _here.shared = None
        shared.give_back()


def seed(number):
    """Seeds what a sample may draw from by 64 bits: Python's, numpy's and torch's generators of the CPU."""
    shared = getattr(_here, "shared", None)
    if shared is not None:
        shared.look()
    _random.seed(number)
    if shared is not None:
        shared.seeded()


class _Shared:
    """Generators that another thread may draw from. A device's are left to it."""

    def __init__(self):
        self.before = self.known = _random.capture(devices=False)
        self.drawn = self.was_seeded = False

    def look(self):
        """Notices draws since the last look; the sample's own and training's are the same to see."""
        self.drawn = self.drawn or _random.capture(devices=False) != self.known

    def seeded(self):
        self.known = _random.capture(devices=False)
        self.was_seeded = True

    def give_back(self):
        self.look()
        if not self.drawn:
            _random.restore(self.before)
        elif self.was_seeded:
            now = _random.capture(devices=False)
            mixed = blake2b(self.before["torch"] + now["torch"], digest_size=8).digest()
            _random.seed(int.from_bytes(mixed, "little"))
