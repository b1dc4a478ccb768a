"""The process's random generators while samples are made in it: theirs for a moment, and then training's again."""

import threading

from stallscope import _random


def apart(make):
    """What `make` returns; where the main thread makes samples, the generators are given back to training, once a batch.

    Another thread may make them while training draws, or while a third one makes samples, too. Nothing can be kept apart there, so that samples
    draw as with torch's loader: they are not seeded, and nothing is given back.
    """
    if not _is_main():
        return make()
    before = _random.capture()
    try:
        return make()
    finally:
        _random.restore(before)


def seed(number):
    """Seeds what a sample may draw from by 64 bits: Python's, numpy's and torch's generators of the CPU."""
    # A worker makes samples in its main thread.
    if _is_main():
        _random.seed(number)


def _is_main():
    return threading.current_thread() is threading.main_thread()
