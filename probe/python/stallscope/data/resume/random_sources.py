"""Where the order of a loader's samples comes from: the process's generators, those of the loader and its samplers, and what
samplers of the script's own hold. And what samples are drawn from that training makes itself."""

import random
import sys

import torch

from stallscope import _random
from stallscope._hooks.knobs import raised_by_signal

from .held import Held, looks

# Under which samplers keep the ones that they are made of.
_WITHIN = ("sampler", "batch_sampler")
_DEEPEST = 4
# What makes samples and batches of them.
_MAKING = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "fetch", "decode", "augment")


class Generators:
    """By name, as long as they are. Holds no loader."""

    def __init__(self, own):
        self.own = own

    def states(self, devices=True):
        return {"process": _random.capture(devices), **self.own_states()}

    def order_states(self):
        """Of the generators alone, without those of devices: no order is drawn there, and to ask one for its state may wait for it."""
        return {"process": _random.capture(devices=False), **self.shared_states()}

    def own_states(self):
        return _states(self.own)

    def scalars(self, states):
        """What samplers hold now, of numbers and texts that changed: beside `states`, which were taken as the pass began."""
        return {name: one.scalars(states.get(name) or ()) for name, one in self.own.items() if type(one) is Held}

    def set_scalars(self, scalars):
        for name, one in self.own.items():
            if type(one) is Held and name in scalars:
                one.set_scalars(scalars[name])

    def shared_states(self):
        """Of those generators that others may draw from as well: another loader, training."""
        return _states({name: one for name, one in self.own.items() if type(one) is not Held})

    def set_shared(self, states, taken):
        """But those that are `taken`, as others go on with them; they are all taken then."""
        for name, one in self.own.items():
            if name in states and id(one.generator) not in taken:
                one.set(states[name])
        self.take(taken)

    def keep_taken(self, now, taken):
        """Those that are `taken` stay as they were `now`, before an order was drawn again."""
        for name, one in self.own.items():
            if type(one) is not Held and id(one.generator) in taken:
                one.set(now[name])

    def take(self, taken):
        taken.update(id(one.generator) for one in self.own.values() if type(one) is not Held)

    def set(self, states):
        if "process" in states:
            _random.restore(states["process"])
        for name, one in self.own.items():
            if name in states:
                one.set(states[name])


def _states(sources):
    states = {name: one.state() for name, one in sources.items()}
    return {name: state for name, state in states.items() if state is not None}


class Torchs:
    def __init__(self, generator):
        self.generator = generator

    def state(self):
        return _random.generator_bytes(self.generator)

    def set(self, state):
        _random.set_generator(self.generator, state)


class Pythons:
    def __init__(self, generator):
        self.generator = generator

    def state(self):
        return self.generator.getstate()

    def set(self, state):
        version, words, gauss = state
        self.generator.setstate((version, tuple(words), gauss))


class Numpys:
    """numpy.random.Generator or RandomState."""

    def __init__(self, generator):
        self.generator = generator

    def state(self):
        if hasattr(self.generator, "bit_generator"):
            return self.generator.bit_generator.state
        return self.generator.get_state(legacy=False)

    def set(self, state):
        if hasattr(self.generator, "bit_generator"):
            self.generator.bit_generator.state = _random.within_buffer(state)
        else:
            self.generator.set_state(_random.within_buffer(state))


def generators(loader, before):
    """The `Generators` of a loader. `before`: what its samplers held at first, by name, to be kept with the loader; None: without that."""
    inner = attribute_of(loader.batch_sampler, "sampler", loader.sampler)
    found = {"generator": getattr(loader, "generator", None), "sampler": attribute_of(inner, "generator")}
    own = {name: Torchs(one) for name, one in found.items() if isinstance(one, torch.Generator)}
    seen = {id(one) for one in found.values()}
    for path, sampler in _samplers(loader):
        for name, value in getattr(sampler, "__dict__", {}).items():
            kind = _kind(value)
            if kind is not None and id(value) not in seen:
                seen.add(id(value))
                own[f"{path}.{name}"] = kind(value)
        if before is None:
            continue
        if path not in before:
            before[path] = looks(sampler)
        own[f"{path} counts"] = Held(sampler, before[path])
    return Generators(own)


def attribute_of(sampler, name, instead=None):
    """A sampler's attribute, or what is there `instead`, also where a look-up of the script's own raises what it likes."""
    try:
        return getattr(sampler, name, instead)
    except Exception as error:
        if raised_by_signal(error):
            raise
        return instead


def of_samples(loader, order):
    """The `Generators` that the data set and the collate function have, and that are neither the process's nor of the `order`. None where
    workers make the samples, each with its own."""
    from stallscope.data.cache.keys import digests

    found, seen = {}, {id(torch.default_generator), id(random._inst), id(_numpys()), *(id(getattr(one, "generator", None)) for one in order.own.values())}
    for making in (loader.dataset, loader.collate_fn) if loader.num_workers == 0 else ():
        for one in digests.generators(making, _MAKING):
            kind = _kind(one)
            if kind is not None and id(one) not in seen:
                seen.add(id(one))
                found[f"sample {len(found)} {type(one).__name__}"] = kind(one)
    return Generators(found)


def _numpys():
    """numpy's own, where that is loaded."""
    return getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)


def _kind(value):
    # Not by isinstance(), for which what stands for something that is opened when it is first used would open it here.
    kind = type(value)
    if issubclass(kind, torch.Generator):
        return Torchs
    if issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom):
        return Pythons
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.random.Generator, numpy.random.RandomState)):
        return Numpys
    return None


def _samplers(one, path="", depth=0):
    for name in _WITHIN:
        inside = attribute_of(one, name)
        if inside is not None and not isinstance(inside, (list, tuple, range)) and depth < _DEEPEST:
            where = f"{path}.{name}" if path else name
            yield where, inside
            yield from _samplers(inside, where, depth + 1)
