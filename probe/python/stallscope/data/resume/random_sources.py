"""Where the order of a loader's samples comes from: the process's generators, those of the loader and its samplers, and what
samplers of the script's own hold. And what samples are drawn from that training makes itself."""

import random
import sys

import torch

from stallscope import _random
from stallscope._hooks.knobs import raised_by_signal

from .held import Held, looks
from .opaque import Seen, attributes

# Under which samplers keep the ones that they are made of.
_WITHIN = ("sampler", "batch_sampler")
_DEEPEST = 4
# Of numpy's, that are made anew.
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
# What makes samples and batches of them.
_MAKING = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "fetch", "decode", "augment")


class Generators:
    """By name, as long as they are. Holds no loader. `born`: names of those that samplers have made since they were first looked at."""

    def __init__(self, own, born=()):
        self.own, self.born = own, list(born)

    def states(self, devices=True):
        return {"process": _random.capture(devices), **self.own_states()}

    def order_states(self):
        """Of the generators alone, without those of devices: no order is drawn there, and to ask one for its state may wait for it."""
        return {"process": _random.capture(devices=False), **self.shared_states()}

    def own_states(self):
        states = _states(self.own)
        return {**states, "born": list(self.born)} if self.born else states

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
        self._make(states)
        for name, one in self.own.items():
            if name in states:
                one.set(states[name])

    def _make(self, states):
        """Generators that samplers of the script's own make when they are first iterated, and then go on with."""
        for name in sorted(states.keys() & set(states.get("born", ())) - self.own.keys()):
            path, _, attribute = name.rpartition(".")
            for where in (path,) if path else ("batch_sampler.sampler", "sampler") if name == "sampler" else ():
                held = self.own.get(f"{where} counts")
                attribute = "generator" if name == "sampler" else attribute
                if type(held) is Held and held.lacks(attribute):
                    made = _made(states[name])
                    if made is not None and held.take(attribute, made.generator):
                        self.own[name] = made
                        self.born.append(name)
                    break

    def unkept(self):
        """As "Class.attribute", what samplers have that changed and is not kept."""
        found = [(one.sampler, name) for one in self.own.values() if type(one) is Held for name in one.unkept()]
        return list(dict.fromkeys(f"{type(sampler).__name__}.{name}" for sampler, name in found))


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


def _made(state):
    """A generator of the kind that has such a state; None where that is not known."""
    numpy = sys.modules.get("numpy")
    try:
        if isinstance(state, bytes):
            made = Torchs(torch.Generator())
        elif isinstance(state, (tuple, list)):
            made = Pythons(random.Random())
        elif numpy is None:
            return None
        elif "has_gauss" in state:
            made = Numpys(numpy.random.RandomState())
        elif state["bit_generator"] not in _BIT_GENERATORS:
            return None
        else:
            made = Numpys(numpy.random.Generator(getattr(numpy.random, state["bit_generator"])()))
        made.set(state)
        return made
    except Exception as error:
        if raised_by_signal(error):
            raise
        # One of a device's, or of a class of the script's own.
        return None


def generators(loader, before):
    """The `Generators` of a loader. `before`: what its samplers held at first, by name, to be kept with the loader; None: without that."""
    inner = attribute_of(loader.batch_sampler, "sampler", loader.sampler)
    found = {"generator": getattr(loader, "generator", None), "sampler": attribute_of(inner, "generator")}
    own = {name: Torchs(one) for name, one in found.items() if isinstance(one, torch.Generator)}
    seen, born = {id(one) for one in found.values()}, []
    for path, sampler in _samplers(loader):
        for name, value in attributes(sampler).items():
            kind = _kind(value)
            if kind is None:
                continue
            called = "sampler" if value is found["sampler"] else f"{path}.{name}"
            if id(value) not in seen:
                seen.add(id(value))
                own[called] = kind(value)
            if before and path in before and called in own and called not in born and _is_born(value, before[path].get(name)):
                born.append(called)
        if before is None:
            continue
        if path not in before:
            before[path] = looks(sampler)
        own[f"{path} counts"] = Held(sampler, before[path])
    return Generators(own, born)


def _is_born(value, first):
    """`first`: what was looked at in its place."""
    numpy = sys.modules.get("numpy")
    kinds = (torch.Generator, random.Random) + (() if numpy is None else (numpy.random.Generator, numpy.random.RandomState))
    return type(value) in kinds and not (type(first) is Seen and first.is_of(value))


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
