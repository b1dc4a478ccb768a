"""Numbers, texts, and containers of them: as many as there may be, digested in C."""

import io
import itertools
import pickle
from hashlib import blake2b

NUMBERS = {type(None), bool, int, float, complex}
TEXTS = {str, bytes}
NESTED = {list, tuple, dict}
_PLAIN = NUMBERS | TEXTS | NESTED
# Lists in lists.
_DEEPEST = 60


def is_a(value, *kinds):
    """As isinstance() without the object's word for it: its class may have a property of the name `__class__`."""
    return any(of is kind for of in type(value).__mro__ for kind in kinds)


def is_plain(value, most):
    """Whether it is made of numbers, texts, lists, tuples and dicts alone; and of no more than so many."""
    values = [value]
    for _ in range(_DEEPEST):
        kinds = set(map(type, values))
        if not kinds <= _PLAIN:
            return False
        if most is not None and sum(len(one) for one in values if type(one) in TEXTS) > most:
            return False
        if not kinds & NESTED:
            return True
        if len(kinds) > 1 or dict in kinds:
            nested = [one for one in values if type(one) in NESTED]
            values = [itertools.chain(one, one.values()) if type(one) is dict else one for one in nested]
        values = list(itertools.chain.from_iterable(values))
        if most is not None and len(values) > most:
            return False
    return False


def dump(value, take):
    """Hands its content over, piece by piece; it ends where nothing else could go on."""
    if type(value) in (bytes, bytearray):
        take(b"%s %d " % (type(value).__name__.encode(), len(value)))
        return take(value)
    pickler = pickle.Pickler(_Sink(take), protocol=5)
    # Without a memo: equal strings are equal, be they one object or two.
    pickler.fast = True
    pickler.dump(value)


def pickled(value):
    pieces = []
    dump(value, lambda data: pieces.append(bytes(data)))
    return b"".join(pieces)


class TooMuch(Exception):
    """It has more bytes than are looked at."""


class Content:
    """The digest of so many bytes at most."""

    def __init__(self, most_bytes):
        self.digest = blake2b(digest_size=32)
        self.bytes = 0
        self.most_bytes = most_bytes

    def write(self, data):
        self.bytes += len(data)
        if self.bytes > self.most_bytes:
            raise TooMuch
        self.digest.update(data)


class _Sink(io.RawIOBase):
    def __init__(self, take):
        self.take = take

    def writable(self):
        return True

    def write(self, data):
        self.take(data)
        return len(data)
