"""Makes the samples of a data set from bytes that are kept, in whatever process makes batches.

Whatever goes wrong with what is kept, the sample is made once more as it would be without, from generators seeded
alike. So the job sees what its own code gives or raises, and nothing else.
"""

import io
import operator
import os
import stat
import weakref
from functools import partial

from stallscope import _notices
from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.seeding.draws import gathered, is_given_for_another, package_of, places, plain, plain_all
from stallscope.data.seeding.isolation import apart

from . import encoding, open_hook
from .file_set import FileSet
from .keys import fingerprint
from .reader import Unkept, again, tag_of
from .split import base_index, base_of
from .split_parts import has_getitem

# After so many samples that could only be made without, nothing kept is used any more.
_MOST_AT_FAULT = 16


class _Maker:
    # Whether the data set may make a sample by itself where what it is made from cannot be had.
    has_own_way = False

    def __init__(self, dataset, samples, kept):
        self.dataset = dataset
        # Ids are below; None where nothing is kept.
        self.samples = samples
        self.kept = kept
        self.at_fault = set()

    def one(self, index, seed):
        """As `dataset[index]` would be, after `seed()`."""
        use = self.use_of(index)
        if use is None:
            seed()
            return self.plain(index)
        seed()
        making = self.making([use])
        try:
            sample = making.sample(index)
            if not making.lacked:
                return sample
        except Exception as error:
            if not (making.gave or self.has_own_way) or raised_by_signal(error):
                raise
        seed()
        sample = self.plain(index)
        self._blame(making)
        return sample

    def many(self, indices, seed):
        """As the data set's `__getitems__(indices)` would be, after `seed()`."""
        uses = [self.use_of(index) for index in indices]
        making = self.making(uses)
        seed()
        try:
            samples = making.batch(indices)
            if not making.lacked:
                return samples
        except Exception as error:
            if not (making.gave or self.has_own_way) or raised_by_signal(error):
                raise
        seed()
        samples = self.plain_batch(indices)
        self._blame(making)
        return samples

    def use_of(self, index):
        """Id and places of a use, whether another sample was drawn, and its packages; None for what is no number of a sample."""
        number = self.number_of(index) if self.kept is not None else None
        if number is None or number in self.at_fault:
            return None
        return (number, *places(index), is_given_for_another(index), package_of(index))

    def begun(self, init):
        """Calls `init`, the script's own function for a worker that begins. False where it makes another data set, so that nothing kept
        is used from then on."""
        init()
        return True

    def number_of(self, index):
        """The sample's number in the data set below; None where only the data set's own code may know it."""
        try:
            number = operator.index(base_index(self.dataset, index))
        except Exception as error:
            if raised_by_signal(error):
                raise
            return None
        return number if 0 <= number < self.samples else None

    def _blame(self, making):
        if not making.gave:
            # What is kept had no part in it.
            return
        if not self.at_fault:
            _notices.warn(
                f"stallscope: sample {making.numbers[0]} of {type(self.dataset).__name__} could not be made from what the "
                "cache has of it, but without; from now on it is read anew each time",
                2,
            )
        self.at_fault.update(making.numbers)
        if len(self.at_fault) >= _MOST_AT_FAULT:
            self.kept = None

    def batch_made(self):
        if self.kept is not None:
            self.kept.batch()


class FromParts(_Maker):
    """Of a data set with `fetch` and `decode`, and maybe `augment`, which stand for its `__getitem__`."""

    def __init__(self, dataset, samples, kept, augments=False):
        super().__init__(dataset, samples, kept)
        self.base = base_of(dataset)
        # Which may give another sample in the place of one that is broken.
        self.has_own_way = has_getitem(self.base)
        self.augments = augments
        # Hears of samples that were not fetched, for a data set that has read them ahead.
        self.had = getattr(self.base, "had", None)
        # Whether what is kept comes from `decode`, not from `fetch`; and what it is of.
        self.decoded = False
        self.evidence = None

    def begun(self, init):
        if self.kept is None:
            return super().begun(init)
        before = fingerprint.glance_at(self.base)
        init()
        # Many open a file or set a number, and change no sample.
        if fingerprint.glance_at(self.base) == before or apart(partial(self.evidence.is_of, self.base)):
            return True
        self.kept = None
        return False

    def making(self, uses):
        return _Parts(self, uses)

    def plain(self, index):
        index = plain(index)
        if self.has_own_way:
            return self.dataset[index]
        data = again(lambda: self.base.fetch(base_index(self.dataset, index)))
        return self.finished(self.base.decode(data))

    def finished(self, decoded):
        return self.base.augment(decoded) if self.augments else decoded

    def plain_batch(self, indices):
        if self.has_own_way:
            return gathered(self.dataset.__getitems__(plain_all(indices)))
        return [self.plain(index) for index in indices]


class _Parts:
    # Whether what is kept was not enough for a sample though it was made.
    lacked = False

    def __init__(self, maker, uses):
        self.maker = maker
        self.uses = uses
        # Of the sample that is being made: whether its bytes were to be had, and its id.
        self.gave = False
        self.numbers = []

    def sample(self, index):
        return self._sample(index, self.uses[0])

    def batch(self, indices):
        return [self._sample(index, use) for index, use in zip(indices, self.uses)]

    def _sample(self, index, use):
        self.gave, self.numbers = False, []
        if use is None:
            return self.maker.plain(index)
        self.numbers = [use[0]]
        base, inner = self.maker.base, base_index(self.maker.dataset, plain(index))

        fetched = []

        def fetch():
            fetched.append(True)
            data = base.fetch(inner)
            if isinstance(data, memoryview):
                return bytes(data)
            if not isinstance(data, (bytes, bytearray)):
                raise Unkept(data)
            return data

        if self.maker.decoded:
            sample = self._of_decoded(use, fetch)
        else:
            sample = self._of_encoded(use, fetch)
        if not fetched and self.maker.had is not None:
            self.maker.had(inner)
        return sample

    def _of_encoded(self, use, fetch):
        try:
            data = self.maker.kept.of(use, 0, fetch)
        except Unkept as unkept:
            data = unkept.instead
        else:
            self.gave = True
            data = _own(data)
        return self.maker.finished(self.maker.base.decode(data))

    def _of_decoded(self, use, fetch):
        fresh = []

        def made(data):
            self.gave = True
            fresh.append(self.maker.base.decode(_own(data)))
            try:
                return encoding.pack(fresh[0])
            except encoding.Unpackable:
                raise Unkept(fresh[0]) from None

        instead = None
        try:
            decoded = self.maker.kept.of(use, 0, fetch, made)
        except Unkept as unkept:
            instead = unkept.instead
        else:
            self.gave = True
        if fresh:
            decoded = fresh[0]
        elif instead is not None:
            decoded = self.maker.base.decode(instead)
        else:
            decoded = decoded.sample
        return self.maker.finished(decoded)


def _own(data):
    """The same type from the source and from the pool, and nobody else has it."""
    return data if type(data) is bytearray else bytearray(data)


class FromFiles(_Maker):
    """Of a data set each of whose samples opens one file, or `files` of them."""

    # Whether a sample is made once more where what was given for its file was not enough.
    makes_again = True

    def __init__(self, dataset, samples, kept, most_bytes, looks, files=1):
        super().__init__(dataset, samples, kept)
        self.files = files
        self.most_bytes = most_bytes
        # Whether a file is looked at with each use.
        self.looks = looks

    def making(self, uses):
        return _Files(self, uses)

    def handed_out(self, data, name, reopen):
        """What a sample gets that opens a file of these bytes."""
        return open_hook.Held(data, name)

    def plain(self, index):
        return self.dataset[plain(index)]

    def plain_batch(self, indices):
        return gathered(self.dataset.__getitems__(plain_all(indices)))


class _Files:
    """Some samples that are made one after the other: the first file, or the first few, that are opened are the first sample's. Where
    they are not, their names tell, and they are read."""

    def __init__(self, maker, uses):
        self.maker = maker
        self.uses = iter(uses)
        self.numbers = [use[0] for use in uses if use is not None]
        self.held = []
        # Weak ones, where they are not held.
        self.given = []
        # Of the sample that is being made, where it opens several.
        self.set = None
        open_hook.install()

    def sample(self, index):
        return self._made(lambda: self.maker.plain(index))

    def batch(self, indices):
        return self._made(lambda: self.maker.plain_batch(indices))

    def _made(self, make):
        try:
            return open_hook.made_by(self, make)
        finally:
            self.over()

    @property
    def gave(self):
        return bool(self.held)

    @property
    def lacked(self):
        """Data sets that catch exceptions make a sample of another kind where the file itself is not to be had."""
        return any(file.lacked for file in self.held)

    def opened(self, original, args, kwargs):
        try:
            path = open_hook.path_of(*args, **kwargs)
        except TypeError:
            path = None
        kept = self._next_kept() if path is not None else None
        if kept is None:
            return original(*args, **kwargs)
        looks = self.maker.looks
        tag, refused = tag_of(path, looks), []

        def read():
            try:
                file = original(*args, **kwargs)
            except OSError as error:
                if self.maker.makes_again or raised_by_signal(error):
                    raise
                refused.append(error)
                raise Unkept(None) from None
            if not issubclass(type(file), (io.BufferedReader, io.FileIO)):
                # An `open` of the script's own may give anything.
                raise Unkept(file)
            try:
                described = os.fstat(file.fileno())
                if not stat.S_ISREG(described.st_mode) or not 0 < described.st_size <= self.maker.most_bytes:
                    raise Unkept(file)
                if looks and tag != tag_of(path, looks, described):
                    # Another one than was looked at: a link leads elsewhere by now, or an `open` of the script's own.
                    raise Unkept(file)
                data = file.read()
                if len(data) != described.st_size:
                    # It is being written, or made up as it is read, as files of /sys are.
                    file.seek(0)
                    raise Unkept(file)
            except OSError:
                file.close()
                raise
            file.close()
            return data

        try:
            data = kept(tag, read)
        except Unkept as unkept:
            if not refused:
                return unkept.instead
        except (OSError, MemoryError) as error:
            if raised_by_signal(error):
                raise
            # The file, so that the data set meets what is wrong with it by itself.
            data = None
        if refused:
            # At once, as without us.
            raise refused.pop()
        if data is None:
            return original(*args, **kwargs)
        file = self.maker.handed_out(data, open_hook.name_of(*args, **kwargs), lambda: original(*args, **kwargs))
        if self.maker.makes_again:
            self.held.append(file)
        else:
            self.given.append(weakref.ref(file))
        return file

    def _next_kept(self):
        """What gives the bytes of the file that is opened now, for its tag and what reads it; None where nothing is kept of it."""
        if self.maker.files == 1:
            use = next(self.uses, None)
            return None if use is None else partial(self.maker.kept.of, use)
        if self.set is None or self.set.is_full():
            self._set_over()
            self.set = FileSet(self.maker.kept, next(self.uses, None), self.maker.files)
        if self.set.use is None:
            self.set.opens += 1
            return None
        return self.set.of

    def _set_over(self):
        done, self.set = self.set, None
        if done is not None:
            done.over()

    def over(self):
        """Its samples are made: what is there of their files stays open."""
        self._set_over()
        for reference in self.given:
            file = reference()
            if file is not None:
                file.outlives()
