"""In which form samples are kept: as they were fetched, or as they were decoded. Measured at the first iteration, and
agreed on by all who read the data set, so that they share what is kept."""

import json
from hashlib import blake2b

from . import encoding, pool

# Decoded has to take this share of the seconds, or less: what was measured is not exact, and encoded keeps more.
_WORTH = 0.9
_AGREED_BYTES, _AGREES_MS = 4096, 1000


class Form:
    def __init__(self, decoded, why, share=None):
        self.decoded = decoded
        self.why = why
        # Of the data set, what the cache holds; None where nobody knows.
        self.share = share

    def figures(self):
        return {"kept": "decoded" if self.decoded else "encoded", "kept_because": self.why}

    def over(self, space):
        """The part of the pool, as those see it who make samples."""
        return Decoded(space) if self.decoded else space


def settled(found, key, budget_bytes):
    """The form for a cut of `cut.of`, and the key of its part of the pool; `key`: of what is fetched."""
    if found.decoded is None:
        return Form(False, "a sample's file is kept as it is"), key
    if "why" in found.decoded:
        return Form(False, found.decoded["why"]), key
    figures = found.decoded["figures"]
    choice = agreed(chosen(figures, budget_bytes, found.length), key + b"form")
    if not choice["decoded"]:
        return Form(False, choice["why"]), key
    return Form(True, choice["why"], choice["share"]), key_of_decoded(key, found.decoded["evidence"])


def key_of_decoded(key, evidence):
    """Another decode gives other samples of the same bytes."""
    return blake2b(key + repr(("decoded", encoding.VERSION, evidence)).encode(), digest_size=32).digest()


def held(budget_bytes, samples, bytes_each):
    """The share of so many samples that the budget holds."""
    return min(1.0, budget_bytes / max(1, samples * bytes_each))


def expected_s(figures, budget_bytes, samples):
    """Seconds a sample, once the cache is full: encoded, and decoded."""
    encoded = held(budget_bytes, samples, figures["encoded_bytes"])
    decoded = held(budget_bytes, samples, figures["decoded_bytes"])
    made_s = figures["read_s"] + figures["decode_s"]
    return (
        (1 - encoded) * figures["read_s"] + figures["decode_s"],
        (1 - decoded) * (made_s + figures["pack_s"]) + decoded * figures["take_s"],
    )


def chosen(figures, budget_bytes, samples):
    """The form by these figures of an average sample, and why, as plain data."""
    encoded_s, decoded_s = expected_s(figures, budget_bytes, samples)
    encoded, decoded = (held(budget_bytes, samples, figures[name]) for name in ("encoded_bytes", "decoded_bytes"))
    why = (
        f"expected {1e3 * decoded_s:.3g} ms a sample decoded and {1e3 * encoded_s:.3g} ms encoded, "
        f"as the cache holds {decoded:.0%} of the samples decoded and {encoded:.0%} encoded"
    )
    return {"decoded": decoded_s < _WORTH * encoded_s, "why": why, "share": decoded}


def agreed(choice, key):
    """What the first who asked has chosen, a dict of plain data: it lies in the pool as a data set of one sample."""
    try:
        space = pool.space(blake2b(key, digest_size=32).digest(), 1, _AGREED_BYTES, "minio")
    except pool.NoPool:
        return choice
    answer = space.get(0, 0)
    if answer is None and space.claim(0, _AGREES_MS, 0):
        space.fill(0, 0, json.dumps(choice).encode()[:_AGREED_BYTES], 0, 0)
        return choice
    answer = answer if answer is not None else space.get(0, 0)
    try:
        agreed_on = json.loads(bytes(answer))
        return {name: type(mine)(agreed_on[name]) for name, mine in choice.items()}
    except (TypeError, ValueError, KeyError):
        return choice


class Decoded:
    """A part of the pool that holds decoded samples: what is none is not there."""

    def __init__(self, space):
        self.space = space

    def get(self, number, tag):
        data = self.space.get(number, tag)
        if data is None:
            return None
        try:
            return Taken(encoding.unpack(data), len(data))
        except encoding.Broken:
            return None

    def __getattr__(self, name):
        # One that is being made anew in a worker has no space yet, and what pickles asks for is not the space's.
        if name.startswith("__") or "space" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.space, name)


class Taken:
    """A decoded sample out of the pool, its user's own."""

    def __init__(self, sample, count):
        self.sample = sample
        self.count = count

    def __len__(self):
        return self.count
