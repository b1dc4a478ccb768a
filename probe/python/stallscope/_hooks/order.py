"""Whether the order of a loader's samples may depend on how far ahead of training it is asked for them.

A sampler that draws in mid-epoch, from generators that training draws from as well, gives another order where batches are
asked for earlier or later; so does one that gets training's results in mid-epoch, and one that counts what it gave, where a
loop is left early. torch's own samplers draw when they begin, or from a generator of their own. Of any other, the process's
generators and what it holds are compared around each draw, for an epoch, before its loader's knobs take effect. A sampler that repeats one
of torch's for ever, for an iterator that is kept for the whole run, has no such epoch: it is watched for two passes over the data.

At the end of an epoch torch's RandomSampler asks the data set again how long it is, and draws again from the generator that it was given,
which others may draw from meanwhile: it is asked for the end when it would be without us.
"""

import sys
import weakref

from . import length, outline
from .code_names import BY_TEXT
from .knobs import later, raised_by_signal

# Their samplers draw when they begin, or from generators of their own, unless they are given the process's.
_FRAMEWORKS = frozenset(
    ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "stallscope", "torch", "torchdata", "transformers")
)
# Under which samplers keep the ones that they are made of.
_WITHIN = ("sampler", "batch_sampler", "_sampler", "_batch_sampler")
_LISTS = (list, tuple, range)
_DEEPEST = 8
# Of a sampler that never ends: with what it does where one pass follows another.
_PASSES = 2

# Code with one of these names may read what does not show: files and other processes; what is only named when it runs; what generators will
# give, without a draw; and what torch, Python or a device has of training.
_UNSEEN = BY_TEXT.union(
    """
    access connect exists fromfile genfromtxt getatime getctime getline getmtime getsize glob iglob imread is_dir is_file isdir isfile islink
    iterdir lexists listdir load loadtxt lstat memmap mmap open open_memmap popen Popen read_bytes read_csv read_feather read_file read_hdf
    read_image read_json read_parquet read_pickle read_table read_text readlink rglob safe_open scandir stat statvfs subprocess urlopen walk
    attrgetter dir eval exec f_globals f_locals get_objects getmembers __globals__ setattr
    get_rng_state get_state getstate initial_seed
    are_deterministic_algorithms_enabled backends cwd get_default_device get_default_dtype get_num_threads getcontext getcwd
    is_autocast_enabled is_grad_enabled is_inference_mode_enabled max_memory_allocated mem_get_info memory_allocated
    """.split()
)

_orders: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


class Order:
    """What is known of one loader's order."""

    def __init__(self, loader):
        sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        samplers = list(_made_of(sampler))
        self.kinds = [type(one) for one in samplers]
        # What training and workers both have of the data set and the functions given with it: a batch that is asked for earlier is made of
        # what that was earlier.
        shared = outline.shared(loader.dataset, loader.collate_fn, loader.worker_init_fn)
        self.shared = [reference for one in shared for reference in _reference(one)]
        self.is_known = not self.shared and all(_is_known(one) for one in samplers)
        self.draws_at_its_end = any(_has_generator(one) or _follows_length(one) for one in samplers)
        # A script's own sampler, or data set, is not asked for its length, which may draw.
        self.knows_length = all(_is_frameworks(one) and _is_counted_freely(one) for one in samplers)
        # Those that may take calls, or count; not what they draw from, which is large.
        self.own = [reference for one in samplers if not _is_known(one) for reference in _reference(one)]
        self.dataset = _reference(outline.scripts_own(loader.dataset))
        # A draw that was not an epoch's first moved one of the process's generators or something that a sampler holds, or somebody
        # else moved that between two draws.
        self.draws_late = False
        # An epoch was watched to its end.
        self.was_watched = False
        # Batches of the last whole epoch.
        self.batches = None
        # Called once it is found out in mid-epoch; None: nobody asks.
        self.waiting = None
        self.batches_of_passes = None
        self.within = [reference for one in samplers for reference in _reference(one)]

    def is_passed(self, draws):
        """Whether as many draws have gone twice through the data, as far as torch's samplers within say how long that takes."""
        if self.batches_of_passes is None:
            self.batches_of_passes = _PASSES * _batches_of_pass([one() for one in self.within])
        return draws > self.batches_of_passes

    def found_out(self):
        """In mid-epoch it was found whether a change may take effect."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            later.append(waiting)

    def held(self):
        """What those samplers hold that are not known, what their code names of the data set, and what workers share with training, as it looks
        from outside; None where not all of it shows."""
        held = outline.of_whole(*(one() for one in self.own), partly=[one() for one in self.dataset], blind=_UNSEEN)
        around = outline.environment() if self.own else None
        return None if held is None else (held, outline.of(*(one() for one in self.shared)), around)

    def end(self, iterator):
        """The first index that an epoch's end may be drawn with, as `iterator` counts them; None where that draws nothing, or nobody knows."""
        if not self.draws_at_its_end and self.is_known:
            return None
        if not (self.draws_at_its_end and self.knows_length):
            # A sampler of the script's may count its epochs there, by which training goes.
            return None if self.batches is None else self.batches - 1
        try:
            indices = iterator._index_sampler
            left = getattr(indices, "left", None)
            return (left() if left is not None else len(indices)) - 1
        except Exception as error:
            if raised_by_signal(error):
                raise
            return None

    def succeeds(self, former):
        """The script has made the loader anew."""
        if former is not self and former.kinds == self.kinds:
            self.draws_late |= former.draws_late
            self.was_watched |= former.was_watched
            self.batches = former.batches if self.batches is None else self.batches


def of(loader):
    """The `Order` of a loader."""
    order = _orders.get(loader)
    if order is None:
        order = _orders[loader] = Order(loader)
    return order


def begin(iterator, loader):
    """`iterator` is about to draw an epoch's first index."""
    iterator.__dict__["_stallscope_order"] = of(loader)
    iterator.__dict__.update(_stallscope_drawn=0, _stallscope_moved=False)
    iterator.__dict__.pop("_stallscope_end", None)


def end(iterator):
    """The first index with which the epoch's end may be drawn; None where it does not matter when. To be asked first before training has had a
    batch: a data set that has grown since has another length than torch's sampler began with."""
    known = iterator.__dict__
    if "_stallscope_end" not in known:
        order = known.get("_stallscope_order")
        known["_stallscope_end"] = None if order is None else order.end(iterator)
    return known["_stallscope_end"]


def ended(iterator):
    """There are no more indices in this epoch."""
    order = iterator.__dict__.get("_stallscope_order")
    if order is not None:
        order.batches = iterator.__dict__.get("_send_idx", order.batches)


class Draw:
    """An index that is being drawn of an order that is watched."""

    def __init__(self, order, iterator):
        from stallscope import _random

        self.order, self.iterator, self.capture = order, iterator, _random.capture
        # Whether it came to the epoch's end.
        self.ended = False
        self.before, self.held = self.capture(devices=False), order.held()
        if self.held is None or iterator.__dict__["_stallscope_drawn"] and self.held != iterator.__dict__.get("_stallscope_held", self.held):
            order.draws_late = True

    def over(self):
        """It was drawn, or there was none."""
        drawn = self.iterator.__dict__
        try:
            held = self.order.held()
            if drawn["_stallscope_drawn"]:
                # What the last draw of an epoch leaves behind is of its end.
                counts = drawn.get("_stallscope_moved", False) and not self.ended
                self.order.draws_late |= counts or self.capture(devices=False) != self.before
                drawn["_stallscope_moved"] = held != self.held
            drawn["_stallscope_held"] = held
        except Exception as error:
            _unclear(self.order, error)
        drawn["_stallscope_drawn"] += 1
        if not self.ended:
            self.order.was_watched |= not self.order.draws_late and self.order.is_passed(drawn["_stallscope_drawn"])
            if self.order.draws_late or self.order.was_watched:
                self.order.found_out()


def watch(iterator):
    """The `Draw` that begins now; None where nothing is to be watched."""
    order = iterator.__dict__.get("_stallscope_order")
    if order is None or order.is_known or order.was_watched or order.draws_late:
        return None
    try:
        return Draw(order, iterator)
    except Exception as error:
        _unclear(order, error)
        return None


def _batches_of_pass(samplers):
    """Of one pass over the data; infinite where none of torch's samplers says it. They ask the data set for its length, too."""
    kinds = sys.modules["torch.utils.data.sampler"]
    batch = 1
    try:
        for one in samplers:
            if type(one) is kinds.BatchSampler:
                batch *= one.batch_size
            elif type(one) in (kinds.SequentialSampler, kinds.RandomSampler):
                samples = getattr(one, "_num_samples", None) or length.of(one.data_source)
                return float("inf") if samples is None else -(-samples // batch)
            elif type(one).__name__ == "DistributedSampler" and _is_known(one):
                return -(-one.num_samples // batch)
    except Exception as error:
        if raised_by_signal(error):
            raise
    return float("inf")


def _unclear(order, error):
    """What cannot be compared may have been drawn."""
    if raised_by_signal(error):
        raise error
    order.draws_late = True


def _is_known(sampler):
    if not _is_frameworks(sampler):
        return False
    if type(sampler) in _LISTS:
        return True
    if not _has_generator(sampler):
        return getattr(sampler, "__dict__", {}).get("generator") is not sys.modules["torch"].default_generator
    # Which draws in mid-epoch from a generator that others may have.
    kept = sampler.__dict__
    several = kept.get("_num_samples") is not None and kept["_num_samples"] > (length.of(sampler.data_source) or 0)
    return not kept.get("replacement") and not several and kept["generator"] is not sys.modules["torch"].default_generator


def _is_frameworks(sampler):
    """Whether its code is Python's, torch's or a framework's, as far as it gives batches and their number: a script may have put its own in there."""
    kind = type(sampler)
    if kind in _LISTS:
        return True
    methods = (getattr(kind, name, None) for name in ("__iter__", "__len__"))
    modules = [kind.__module__, *(getattr(one, "__globals__", {}).get("__name__") for one in methods)]
    return all(one is None or one.partition(".")[0] in _FRAMEWORKS for one in modules)


def _is_counted_freely(sampler):
    source = getattr(sampler, "__dict__", {}).get("data_source")
    return source is None or length.is_asked_freely(source)


def _reference(one):
    try:
        return [weakref.ref(one)]
    except TypeError:
        return []


def _has_generator(sampler):
    """Whether it is a RandomSampler of somebody's generator: without one it makes its own."""
    return _is_random(sampler) and getattr(sampler, "__dict__", {}).get("generator") is not None


def _follows_length(sampler):
    """Whether it is a RandomSampler that gives as many as its data set has by then."""
    return _is_random(sampler) and getattr(sampler, "__dict__", {}).get("_num_samples") is None


def _is_random(sampler):
    return isinstance(sampler, sys.modules["torch.utils.data.sampler"].RandomSampler)


def _made_of(sampler, depth=0):
    yield sampler
    inside = getattr(sampler, "__dict__", {})
    for name in _WITHIN if depth < _DEEPEST else ():
        if inside.get(name) is not None:
            yield from _made_of(inside[name], depth + 1)
