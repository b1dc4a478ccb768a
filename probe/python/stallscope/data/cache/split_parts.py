"""Trying a data set that gives its samples in parts: `fetch`, `decode` and, where it says so, `augment`."""

from hashlib import blake2b
from time import perf_counter

import torch.utils.data

from stallscope._hooks import outline
from stallscope._hooks.knobs import raised_by_signal

from . import encoding, sandbox
from .equality import alike
from .keys import fingerprint

# Samples that are decoded on trial: the first, the middle and the last one in any case, more while there is time.
_PROBES, _ENOUGH_S = 8, 2.0
# All that is tried has to be done in `apart.LIMIT_S`.
_SLOW_S = 4.0


class _OnlyBytes(Exception):
    """A sentence, without its end, that says why what is decoded is not kept."""


class Evidence:
    """Digests of what a data set gives for its first, middle and last sample: of what it fetches, and of what it decodes where that is
    kept."""

    def __init__(self, samples, fetched, decoded=None):
        self.samples = samples
        self.fetched = fetched
        self.decoded = decoded

    def is_of(self, base):
        """Whether `base` gives these samples now."""
        try:
            data = [base.fetch(index) for index in _ends(self.samples)]
            if [_digest(one) for one in data] != self.fetched:
                return False
            return self.decoded is None or [_digest(_packed(base, one)) for one in data] == self.decoded
        except Exception as error:
            if raised_by_signal(error):
                raise
            return False


def has_getitem(base):
    """Whether its class makes samples by itself; otherwise `fetch` and `decode` are all it has."""
    return getattr(type(base), "__getitem__", None) not in (None, torch.utils.data.Dataset.__getitem__)


def tried(base, length):
    """Of a data set of so many samples, as plain data: `evidence` of what it fetches, whether it `augments`, and of the
    decoded form evidence and figures, or why there is none. {"why": …} where its samples are not made of its parts."""
    put_back = sandbox.generators(base)
    fetched = {}
    for index in _ends(length):
        try:
            fetched[index] = data, _ = _fetched(base, index)
        except Exception as error:
            return {"why": f"its fetch({index}) failed ({type(error).__name__}: {error})"}
        if not _is_bytes(data):
            return {"why": f"its fetch({index}) gives a {type(data).__name__}, not bytes"}
    augments = callable(getattr(base, "augment", None))
    if has_getitem(base):
        try:
            augments, why = _recognised(base, put_back, augments, list(fetched))
            indices = [*fetched, *_between(length, fetched)]
            why = why or _other_than_parts(base, put_back, augments, indices, len(fetched))
        except Exception as error:
            return {"why": f"a sample could not be made on trial ({type(error).__name__}: {error})"}
        if why:
            return {"why": why}
    evidence = [_digest(data) for data, _ in fetched.values()]
    if augments:
        try:
            decoded = _measured(base, length, fetched)
        except _OnlyBytes as why:
            decoded = {"why": str(why)}
    else:
        decoded = {"why": "it has no augment(), so that decode() may be random"}
    return {"evidence": evidence, "augments": augments, "decoded": decoded}


def _recognised(base, put_back, augments, samples):
    """Whether sample 0 is augmented after it is decoded, and why neither that nor decoding makes it."""

    def made(make):
        put_back()
        return make()

    def decoded():
        return base.decode(bytearray(base.fetch(0)))

    put_back()
    drawn = sandbox.watched(base)
    whole, failed = base[0], False
    draws = drawn()
    drawn_else = sandbox.watched(base)
    if augments:
        try:
            # Where decode() augments by itself, more is drawn, even if it changes nothing in this sample.
            if alike(whole, made(lambda: base.augment(decoded()))) and not drawn_else():
                put_back()
                drawn = sandbox.watched(base)
                decoded()
                if (not draws or drawn()) and not any(_changes(base, made, index) for index in samples):
                    return False, "its augment() changed nothing on trial, so that its use cannot be seen"
                return True, ""
        except Exception:
            # Another augment() than is meant here.
            failed = True
    if alike(whole, made(decoded)):
        return False, ""
    name = "augment(decode(fetch(0)))" if augments and not failed else "decode(fetch(0))"
    if alike(whole, made(lambda: base[0])):
        return augments, f"{name} is not its sample 0"
    # Samples that are made anew each time say nothing. Where decode() does not, augment() has to be why.
    if augments and not failed and not alike(made(decoded), made(decoded)):
        return True, f"no two of its samples are the same, so that {name} cannot be distinguished from another one"
    if (failed or not augments) and alike(made(decoded), made(decoded)):
        return False, f"no two of its samples are the same, and {name} is always the same"
    return augments and not failed, ""


def _other_than_parts(base, put_back, augments, indices, at_least):
    """Why these samples, the first `at_least` in any case, are not what the parts make of them; empty where they are, or no
    two that are made of one index are the same. What is augmented with a chance may be left as it is on trial: then what
    was drawn tells."""

    def parts(index):
        decoded = base.decode(bytearray(base.fetch(index)))
        return base.augment(decoded) if augments else decoded

    began_s, name = perf_counter(), "augment(decode(fetch({})))" if augments else "decode(fetch({}))"
    for done, index in enumerate(indices):
        if done >= at_least and perf_counter() - began_s > _ENOUGH_S:
            break
        put_back()
        try:
            whole = base[index]
            drawn_else = sandbox.watched(base)
            put_back()
            made = parts(index)
        except Exception:
            if done < at_least:
                raise
            # That sample's own affair.
            continue
        if drawn_else():
            return f"its sample {index} draws other random numbers than {name.format(index)}"
        if not alike(whole, made):
            put_back()
            if alike(whole, base[index]):
                return f"{name.format(index)} is not its sample {index}"
    if _leaves_more(base, parts, indices[0], indices[at_least - 1]):
        return f"making a sample changes what the data set holds, and {name.format('index')} does not"
    batched = getattr(base, "__getitems__", None)
    if callable(batched):
        # In no order, and one of them twice: it may sort them, or make each once.
        several = [*indices[1:at_least], indices[0], indices[at_least - 1]]
        put_back()
        whole = list(batched(several))
        drawn_else = sandbox.watched(base)
        put_back()
        made = [parts(index) for index in several]
        if drawn_else() or not alike(whole, made):
            put_back()
            if drawn_else() or alike(whole, list(batched(several))):
                return "its __getitems__() gives other samples than its parts"
    return ""


def _leaves_more(base, parts, one, other):
    """Whether a sample that the data set makes itself leaves something behind, such as a count, that its parts do not: what samples
    that follow are made with, by all that shows."""

    def held():
        return fingerprint.glance_at(base), outline.of(base)

    # What is kept of a first use is there.
    base[one]
    before = held()
    base[other]
    by_itself = held()
    parts(one)
    return any(now != then and now == later for then, now, later in zip(before, by_itself, held()))


def _changes(base, made, index):
    """Whether this sample tells that it is augmented: it is what augmenting gives, and not what decoding gives."""

    def decoded():
        return base.decode(bytearray(base.fetch(index)))

    whole = made(lambda: base[index])
    return alike(whole, made(lambda: base.augment(decoded()))) and not alike(whole, made(decoded))


def _measured(base, length, fetched):
    """Evidence of what `decode` gives, and figures of an average sample; _OnlyBytes."""
    began_s, evidence, found = perf_counter(), [], []
    for index in (*fetched, *_between(length, fetched)):
        if len(evidence) >= len(fetched) and perf_counter() - began_s > _ENOUGH_S:
            break
        try:
            data, read_s = fetched[index] if index in fetched else _fetched(base, index)
            if not _is_bytes(data):
                continue
            kept, figures = _probed(base, data)
        except encoding.Unpackable as why:
            raise _OnlyBytes(f"what decode() gives cannot be kept: {why}") from None
        except _OnlyBytes:
            raise
        except Exception as error:
            # That sample's own affair.
            kept, figures = _failed(error), None
        if index in fetched:
            evidence.append(_digest(kept))
        if figures is not None:
            found.append({"read_s": read_s, "encoded_bytes": len(data), "decoded_bytes": len(kept), **figures})
    if not found:
        raise _OnlyBytes("none of its samples could be decoded on trial")
    return {"evidence": evidence, "figures": {name: sum(one[name] for one in found) / len(found) for name in found[0]}}


def _probed(base, data):
    """What `decode` gives of `data`, packed, and how long that takes: twice, with generators in different states."""
    drawn = sandbox.watched(base)
    decoded, first_s = _timed(lambda: base.decode(bytearray(data)))
    if drawn():
        raise _OnlyBytes("its decode() draws random numbers")
    if first_s > _SLOW_S:
        raise _OnlyBytes(f"a decode() of {first_s:.0f} seconds cannot be tried")
    kept, pack_s = _timed(lambda: encoding.pack(decoded))
    sandbox.stir()
    again, again_s = _timed(lambda: base.decode(bytearray(data)))
    if encoding.pack(again) != kept:
        raise _OnlyBytes("its decode() gives something else each time")
    taken, take_s = _timed(lambda: encoding.unpack(bytearray(kept)))
    if not alike(taken, again):
        raise _OnlyBytes("what decode() gives is not the same when it was kept")
    return kept, {"decode_s": min(first_s, again_s), "pack_s": pack_s, "take_s": take_s}


def _packed(base, data):
    try:
        return encoding.pack(base.decode(bytearray(data)))
    except Exception as error:
        return _failed(error)


def _failed(error):
    return type(error).__name__.encode()


def _timed(make):
    began_s = perf_counter()
    made = make()
    return made, perf_counter() - began_s


def _fetched(base, index):
    return _timed(lambda: base.fetch(index))


def _ends(length):
    return list(dict.fromkeys((0, length // 2, length - 1)))


def _between(length, others):
    return sorted({round((length - 1) * probe / (_PROBES - 1)) for probe in range(_PROBES)} - set(others))


def _is_bytes(data):
    return isinstance(data, (bytes, bytearray, memoryview))


def _digest(data):
    return blake2b(data, digest_size=16).hexdigest()
