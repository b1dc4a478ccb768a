"""Digests of what Python objects hold: equal for equal content, in another process too.

What cannot be digested is never guessed: it stands for itself by its identity, and the rest is digested all the same."""

import itertools
import os
import weakref
from collections import deque
from hashlib import blake2b

import torch

from stallscope._hooks.knobs import raised_by_signal

from .. import open_hook
from . import arrays, objects
from .plain import NUMBERS, TEXTS, Content, TooMuch, dump, is_plain, pickled

# Of an object's content: as much as is read and digested in half a second. What is looked at one by one counts as some bytes.
_MOST_BYTES = 256 << 20
_OBJECT_BYTES = 256
# A glance looks into what has no more elements than this, or bytes, and at no more objects than that.
_SMALL, _SMALL_BYTES = 1000, 8000
_MOST_GLANCED = 2000
# So many functions are followed to what they use.
_MOST_FUNCTIONS = 2000
# Objects in objects.
_DEEPEST = 40
# Elements of a bulky list or array that a glance looks at.
_SAMPLED = 16


class State:
    """`digest`: of all that could be digested, and of which object the rest is. `drawn`: of how far generators were drawn from, which makes
    no other state of the same object. `why`: None where all could be digested; then both are the same in another process. `parts`: what
    gives each object that could not be digested, or None where it is gone."""

    def __init__(self, digest, drawn, why, parts):
        self.digest = digest
        self.drawn = drawn
        self.why = why
        self.parts = parts

    def __eq__(self, other):
        return self.digest == other.digest and self.has_parts_of(other)

    def has_parts_of(self, other):
        """Whether what could not be digested is the same objects: one that is gone may have another in its place."""
        mine, others = [part() for part in self.parts], [part() for part in other.parts]
        return len(mine) == len(others) and all(one is not None and one is its for one, its in zip(mine, others))


def of(value, names=(), glance=False):
    """The `State` of what `value` holds and of the code of its class, as far as that is reached from methods of these `names`.

    A glance takes bulky contents by identity, size, version and a few elements, and is for this process alone."""
    walk = Walk(glance)
    try:
        if names:
            walk.root = type(value)
            # Paths may be relative, and so is a tensor's kind where nobody says it.
            walk.emit(_folder(), str(torch.get_default_dtype()))
        walk.mention(names)
        walk.value(value)
        walk.finish()
    except Exception as error:
        if raised_by_signal(error):
            raise
        walk.cannot(value, f"{type(error).__name__}: {error}")
    return State(walk.digest.digest(), walk.drawn.digest(), walk.why, walk.parts)


def generators(value, names):
    """Of random numbers, those that what `value` holds and its methods of these `names` lead to, but for bulky contents."""
    walk = Walk(glance=True)
    walk.root = type(value)
    walk.mention(names)
    walk.value(value)
    walk.finish()
    return walk.generators


def _folder():
    try:
        return os.getcwd()
    except OSError:
        return None


class Walk:
    """Goes through what an object holds, in an order that its content alone decides."""

    def __init__(self, glance):
        self.glance = glance
        self.digest = blake2b(digest_size=32)
        self.drawn = blake2b(digest_size=32)
        self.left_bytes = _MOST_GLANCED * _OBJECT_BYTES if glance else _MOST_BYTES
        self.why = None
        self.parts = []
        # Of names that were met in code, which members of classes they may mean.
        self.names = set()
        self.all_names = False
        self.members = []
        # The object whose content is being digested, where that is made for the purpose.
        self.owner = None
        # The class of what is digested, and classes of which the code may make objects.
        self.root = None
        self.made = set()
        # Of random numbers, that were met.
        self.generators = []
        self._numbers = {}
        # An object that was made for this walk must not leave its place to another.
        self._alive = []
        self._later = deque()
        self._functions = 0
        self._depth = 0
        self._of_set = False

    def emit(self, *words):
        self.digest.update(repr(words).encode("utf-8", "surrogatepass"))

    def value(self, value):
        """Tells what `value` is made of."""
        kind = type(value)
        if kind in NUMBERS or (kind in TEXTS and not self._bulky(value)):
            self.digest.update(pickled(value))
        elif kind in TEXTS or kind in (list, tuple, dict, set, frozenset, bytearray):
            self._container(value, kind)
        else:
            # A process that has made samples has our `open`, which makes no other data set.
            self.nested(objects.tell, open_hook.without(value))

    def nested(self, tell, value):
        """`tell(walk, value)`, of an object that may lead back to where it is held."""
        if self.met(value):
            return
        if self._depth >= _DEEPEST:
            return self.cannot(value, "it is nested too deep")
        self.left_bytes -= _OBJECT_BYTES
        if self.left_bytes < 0:
            return self.cannot(value, "it holds too much to look at")
        self._depth += 1
        try:
            self._tried(tell, value)
        finally:
            self._depth -= 1

    def _tried(self, tell, value, *more):
        try:
            tell(self, value, *more)
        except Exception as error:
            if raised_by_signal(error):
                raise
            # Somebody's own property or class may raise whatever it likes.
            self.cannot(value, f"{type(error).__name__}: {error}")

    def met(self, value):
        """Whether it was digested already; then it is emitted by its number. Else it has the next one."""
        number = self._numbers.setdefault(id(value), len(self._numbers))
        known = number < len(self._alive)
        if not known:
            self._alive.append(value)
        self.emit("again" if known else "one", number)
        return known

    def later(self, tell, function, *more):
        """Code leads to other code: digested one after the other, however long that way is."""
        self._functions += 1
        if self._functions > _MOST_FUNCTIONS:
            return self.cannot(function, "its code leads too far")
        self._later.append((tell, function, *more))

    def mention(self, names):
        self.names.update(names)

    def finish(self):
        while self._later or objects.mentioned(self):
            while self._later:
                self._tried(*self._later.popleft())

    def cannot(self, value, why):
        """Stands for what cannot be digested: the object itself."""
        if self.why is None:
            self.why = why
        value = value if self.owner is None else self.owner
        self.emit("cannot", type(value).__name__, id(value))
        self.parts.append(reference(value))

    def bulk(self, value, write, size_bytes, *about):
        """Tells the bytes, at least so many, that `write(take)` hands over piece by piece. Of too many the object stands for itself."""
        self.emit(*about)
        if self.glance and (size_bytes > _SMALL_BYTES or self.left_bytes <= 0):
            return self.stand_in(value)
        if size_bytes > self.left_bytes:
            self.cannot(value, "it holds too much to look at")
            return self.stand_in(value)
        content = Content(self.left_bytes)
        try:
            write(content.write)
        except TooMuch:
            self.cannot(value, "it holds too much to look at")
            return self.stand_in(value)
        self.left_bytes -= content.bytes
        self.digest.update(content.digest.digest())

    def on_behalf(self, value, parts):
        """Tells `parts`, which were made just now of what `value` holds."""
        self.emit("holds", len(parts))
        owner, self.owner = self.owner, value if self.owner is None else self.owner
        try:
            for part in parts:
                self.value(part)
        finally:
            self.owner = owner

    def drawn_from(self, generator, tell):
        """Tells a generator's state."""
        self.generators.append(generator)
        if self.glance:
            return
        walk = self._apart()
        if isinstance(generator, torch.Generator):
            walk.value(generator.get_state())
        else:
            tell(walk, generator)
        self._joined(walk)
        self.drawn.update(walk.digest.digest())

    def stand_in(self, value):
        """What shows without reading all of it that a bulky content is another one."""
        arrays.stand_in(self, value, _SAMPLED)

    def hold(self, value):
        """Notes an object by which a glance knows its content."""
        self.parts.append(reference(value if self.owner is None else self.owner))

    def _bulky(self, value):
        return self.glances_over(len(value))

    def glances_over(self, elements):
        """Whether so many are not looked at."""
        return self.glance and (elements > _SMALL or self.left_bytes <= 0)

    def _container(self, value, kind):
        if self._bulky(value):
            self.emit("bulky", kind.__name__, len(value), id(value) if self.owner is None else None)
            return self.stand_in(value)
        if kind in (set, frozenset):
            return self._set(value, kind)
        if kind in TEXTS or kind is bytearray or is_plain(value, _SMALL if self.glance else None):
            return self.bulk(value, lambda take: dump(value, take), 0, "plain")
        if len(value) * _OBJECT_BYTES > self.left_bytes:
            return self.cannot(value, "it holds too much to look at")
        self.nested(_tell_container, value)

    def _set(self, value, kind):
        # In the order of what its elements hold, as that of the set is another one in each process.
        self.left_bytes -= _OBJECT_BYTES + 32 * len(value)
        if self.left_bytes < 0:
            return self.cannot(value, "it holds too much to look at")
        self.emit(kind.__name__, len(value))
        elements = list(value)
        if is_plain(elements, None):
            for one in sorted(map(pickled, elements)):
                self.digest.update(one)
        elif self._of_set:
            # Sets that lead to each other would be gone through without end.
            self.cannot(value, "it holds a set in a set")
        else:
            walks = [self._through(one) for one in elements]
            self.emit(sorted(walk.digest.digest() for walk in walks))

    def _through(self, element):
        walk = self._apart()
        walk._of_set = True
        walk.value(element)
        walk.finish()
        self._joined(walk)
        return walk

    def _apart(self):
        walk = Walk(self.glance)
        walk.left_bytes, walk._functions = self.left_bytes, self._functions
        return walk

    def _joined(self, walk):
        self.left_bytes, self._functions = walk.left_bytes, walk._functions
        self.why = self.why or walk.why
        self.parts += walk.parts
        self.generators += walk.generators


def _tell_container(walk, value):
    kind = type(value)
    walk.emit(kind.__name__, len(value))
    for one in itertools.chain.from_iterable(value.items()) if kind is dict else value:
        walk.value(one)


def reference(value, gone=None):
    """What gives the object as long as it is there, then `gone` is called. Of a kind that cannot be watched it is kept there."""
    try:
        return weakref.ref(value, gone)
    except TypeError:
        return lambda: value
