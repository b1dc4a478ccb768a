"""Samples of low importance that had to be read, in packages on a disk: written for their next draws, and read many at a time.

Which of them are, and into which package they go, the order of draws says (`sampling/packing.py`). A process that reads such a
sample adds it to its package; the first one that draws from a package reads all of it, and what that brings waits in a small
part of the pool. Whatever fails here, the sample is read from the source.
"""

import os
import time
import weakref
from collections import OrderedDict
from hashlib import blake2b

from stallscope import _native, _notices, _runtime
from stallscope._hooks import kernel_text
from stallscope._hooks.knobs import raised_by_signal

from . import pool
from .reader import _WAIT_MS, _WAITS, Kept

_PACKAGE_BYTES = 4 << 20
# Of the cache, for what was read and is still to be drawn.
_PART = 10
# Packages that are drawn from at a time by no worker, or by those that take turns at one.
_AT_ONCE = 2
# Numbers of the waiting part behind those of samples, which stand for packages that were read.
MARKS = 64
# After a disk has failed, or was full.
_REST_S = 60
_MOST_LOOKED = 1024
_ODD, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1


class Settings:
    """What a loader's user asked for: a folder, and how many bytes may be in it. `workers`: of the loader."""

    def __init__(self, folder, limit, workers):
        self.folder = folder
        self.limit = limit
        # Each draws from a package of its own.
        self.at_once = _AT_ONCE + workers

    def waiting_bytes(self, budget_bytes):
        """The part of a cache in which samples wait for their draws."""
        return min(budget_bytes // _PART, self.at_once * _PACKAGE_BYTES)

    def package_bytes(self, budget_bytes):
        return self.waiting_bytes(budget_bytes) // self.at_once


def waiting_of(key, samples, budget_bytes, in_force_bytes, settings):
    """The waiting part beside a data set's own, which has `in_force_bytes`; None where there can be none: the loader that set
    that budget may have none."""
    requested = settings.waiting_bytes(budget_bytes)
    if requested == 0:
        return None
    waiting = pool.space(key + b" packages", samples + MARKS, requested, "lru")
    figures = waiting.figures()
    is_new = figures.get("clients", 0) <= 1 and figures.get("capacity_bytes") == requested
    return None if is_new and in_force_bytes != budget_bytes - requested else waiting


def run_of(key, order):
    """What the packages of a data set and of these draws are known by, on this node alone, to all of its ranks."""
    settled = order.settled
    draws = order.sampling, order.samples, settled["seed"], order.batch_size, order.ranks.count
    try:
        boot = kernel_text.of("/proc/sys/kernel/random/boot_id")
        runtime = os.stat(_runtime.folder())
        node = boot, runtime.st_dev, runtime.st_ino
    except (OSError, ValueError):
        node = os.urandom(16)
    return blake2b(key + repr((draws, node)).encode(), digest_size=16).digest()


def opened(settings, key, budget_bytes, order):
    """The packages of a loader that begins to iterate, None where they cannot be had, and a warning says why; and their run."""
    run, packages = run_of(key, order), None
    try:
        packages = _native.Packages(settings.folder, run, settings.package_bytes(budget_bytes), settings.limit)
    except (OSError, ValueError) as error:
        if raised_by_signal(error):
            raise
        _warn(f"no packages are kept in {settings.folder}: {error}")
    return packages, run


def close_with(owner, packages):
    """Their run goes with `owner`, or with this process."""
    weakref.finalize(owner, packages.close)


def _warn(sentence):
    _notices.warn(f"stallscope: {sentence}", 2)


class KeptInPackages(Kept):
    """Looks into packages before it reads a sample from the source. `waiting`: the part of the pool for what they bring."""

    def __init__(self, space, tally, policy, waiting, samples):
        super().__init__(space, tally, policy)
        self.waiting = waiting
        self.samples = samples
        # Once it is known what is drawn.
        self.packages = None
        self.salt = 0
        # Of packages that have nothing for this process any more.
        self.looked = OrderedDict()
        self.rests_until_s = 0.0
        self.has_warned = False

    def open(self, packages, run):
        self.packages = packages
        self.salt = int.from_bytes(run[:8], "little")

    def _fill(self, use, tag, read, made):
        """As it has it, but that what is of low importance goes to its package where the cache is full. To offer it to the cache first would
        save no request: MIN keeps most of what is drawn again soon enough to be packed, in the place of others."""
        try:
            raw = self._packaged(use, tag)
            if raw is None:
                raw = self._read(read)
            data = raw if made is None else made(raw)
        except BaseException:
            self.space.give_up(use[0])
            raise
        if self.tally.sizes is not None:
            self.tally.sizes.seen(use[0], len(data))
        if self._is_packed(use) and not self._has_capacity(len(data)) and self._write(use, tag, raw):
            self.space.give_up(use[0])
        else:
            self.space.fill(use[0], tag, data, use[1], use[2])
        return data

    def _is_packed(self, use):
        return use[4] is not None and use[4][1] is not None and self.packages is not None and not self._rests()

    def _has_capacity(self, count):
        figures = self.space.figures()
        return figures["kept_bytes"] + count <= figures["capacity_bytes"]

    def _packaged(self, use, tag):
        """A sample that came in a package; None where none has it."""
        data = self.waiting.get(use[0], tag)
        if data is None and use[4] is not None and self.packages is not None:
            data = self._from(use[4][0], use, tag)
        if data is not None:
            if use[3]:
                # As of what is kept: another sample was drawn, and none is read for it.
                self.tally.substitutions += 1
                self.tally.pool_bytes += len(data)
            else:
                self.tally.misses += 1
                self.tally.packaged += 1
        return data

    def _from(self, number, use, tag):
        """The same of the package with this number, which is read where nobody else has done so or is at it."""
        if number in self.looked:
            return None
        mark, its_tag = self.samples + number % MARKS, (self.salt + number * _ODD) & _MASK
        data = None
        for _ in range(_WAITS):
            if self.waiting.has(mark, its_tag):
                break
            began_s = time.monotonic()
            if self.waiting.claim(mark, _WAIT_MS, its_tag):
                data = self._claimed(number, mark, its_tag, use, tag)
                break
            # Who reads it is done, or the pool does not answer.
            if time.monotonic() - began_s < _WAIT_MS / 2000:
                break
        self.looked[number] = True
        if len(self.looked) > _MOST_LOOKED:
            self.looked.popitem(last=False)
        return self.waiting.get(use[0], tag) if data is None else data

    def _claimed(self, number, mark, its_tag, use, tag):
        """Nobody else reads it until this is over."""
        # What was read first goes first: its samples were drawn, whichever places these are.
        taken, now_ns = None, time.monotonic_ns()
        try:
            # Who waited for this process's turn may find that another one was faster.
            data = self.waiting.get(use[0], tag)
            if data is not None or self._rests():
                return data
            taken = self.packages.take(number, self.waiting, use[0], tag, now_ns)
        except OSError as error:
            if raised_by_signal(error):
                raise
            self._failed(error)
        finally:
            if taken is None:
                self.waiting.give_up(mark)
        if taken is None:
            return None
        count, _, data = taken
        self.tally.package_reads += 1
        self.tally.package_read_bytes += count
        # Behind what it brought, so that who finds it finds that.
        self.waiting.fill(mark, its_tag, b"", now_ns)
        return data

    def _write(self, use, tag, raw):
        """Whether it is in its package."""
        try:
            count = self.packages.add(use[4][1], use[0], tag, raw)
        except OSError as error:
            if raised_by_signal(error):
                raise
            self._failed(error)
            return False
        self.tally.package_written_bytes += count
        return count > 0

    def _rests(self):
        return time.monotonic() < self.rests_until_s

    def _failed(self, error):
        self.rests_until_s = time.monotonic() + _REST_S
        if not self.has_warned:
            self.has_warned = True
            _warn(f"packages rest for now, and their samples are read from the source: {error}")
