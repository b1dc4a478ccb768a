"""A loader's exact position: which batches of which epoch have been handed over.

The order of samples comes from the random generators as they were when the epoch began and when its sampler was first
asked. So a position is those states, the number of batches handed over, and a digest of their indices. To take it up, the
epoch begins again with the same states, and the sampler is asked for what was handed over before, which reads no sample.
"""

import copyreg
import itertools
import weakref

import torch.utils.data

from stallscope import _notices, _random
from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.locks import ForkSafeLock
from stallscope.data.pack import in_loader
from stallscope.data.sampling import draw_order, uses
from stallscope.data.seeding.draws import Repeats
from stallscope.data.seeding.per_sample import epoch_key

from . import persistent_workers, random_sources
from .between import Begun, look_at_drawn
from .iteration import Counted, Handing, Pass, torchs_iterator
from .random_sources import attribute_of
from .trained import Trained

_VERSION = 1


class Positioned(Trained):
    """A DataLoader that tells its position and takes one up. A loader may be given this class when it is there already."""

    _pass = None
    # Hears that a pass begins where no position is taken up.
    _begun_first = None
    # The position between two epochs that was loaded is of a loader whose workers stay.
    _had_workers = False
    # The epoch that was begun anew, from generators as a job begins with.
    _anew = 0
    _beginning = None
    # What samplers held at first.
    _held_at_first = None
    # Of threads that begin passes.
    _fork_safe_lock = None

    def __iter__(self):
        # What iterators find in the loader while they are made, as which pass begins, is one thread's.
        with self.__dict__.setdefault("_fork_safe_lock", ForkSafeLock()):
            handing = self._next_pass()
            if self._between is not None:
                self._between.begun()
            return handing

    def _next_pass(self):
        if self._trained_end is not None and self._trains() is None:
            self._left_at = None if self._trained_end.reached else self._trained_end.batches
        again = None if self._resume is not None else self._again()
        if self._resume is not None and self._between is not None and self._between.round_over:
            _notices.warn(
                f"stallscope: a loader goes on behind batch {self._resume['batches']} of its pass, as the checkpoint is of the last step of an epoch of the loader "
                "beside it: if the loop begins it anew with each such epoch, as in zip(first, endless(second)), these are other batches; make endless(second) once, "
                "before the loop",
                4,
            )
        resume, self._resume = self._resume or again, None
        self._taken_up = None
        if self._begun_first is not None and resume is None:
            process, taken = self._begun_first
            process()
            self._generators().take(taken)
        self._begun_first = None
        generators = self._generators()
        if resume is None:
            # Which draws its seed once, before the pass that a position goes back to.
            began = _random.capture(devices=False) if self._order is not None else None
            course = self._next_course() if self._order is not None else None
            beginning = Pass(self._epochs, self._begun, generators, generators.states())
            beginning.course, beginning.began = course, began
            if self._between is not None:
                beginning.before = self._between.drawn_before(began or beginning.states["process"])
            if self._had_workers:
                self._without_seed(beginning)
            return self._begin(beginning)
        now, own_now = _random.capture(), generators.shared_states()
        taken = resume.pop("taken", set())
        nth = resume.get("nth", resume["epoch"])
        beginning = Pass(resume["epoch"], nth, generators, resume["states"], resume["batches"], resume["digest"])
        # Checkpoints of before have none; there the order is drawn as the pass begins.
        beginning.order_from, beginning.before, beginning.began = resume.get("order_states"), resume.get("before"), resume.get("began")
        beginning.asked_before = resume.get("asked") if self._order is None else None
        if resume.pop("draws_again", False):
            look_at_drawn(resume, now)
        if self._hears_steps:
            self._taken_up = resume, beginning.end
        if self._order is not None:
            # Knows by itself where it is, unless a look at what follows has used that up.
            if again:
                self._order.load(resume["sampling"])
            beginning.course, beginning.skip, beginning.batches = self._order.begin_again(), 0, resume["batches"]
        generators.set(beginning.states)
        if resume["workers_kept"]:
            self._without_seed(beginning)
        try:
            handing = self._begin(beginning)
            # What the script set in mid-epoch, as the sampler has it that is as far ahead as it was.
            if beginning.asked == resume.get("asked"):
                generators.set_scalars(resume["held"])
            generators.keep_taken(own_now, taken)
            self._look_at_asked(beginning, resume)
            # What others drew there since.
            if self._order is not None or "asked" in resume:
                generators.set_shared(self._gone_on(beginning, resume.get("shared", {}), generators.shared_states()), taken)
            return handing
        finally:
            process = resume.get("process")
            process = process() if callable(process) else process
            _random.restore(self._gone_on(beginning, process or now, _random.capture(devices=False)))
            if process and resume.get("draws_first"):
                beginning.begun = Begun(now)
            self._sources().set(resume.get("drawn_from", {}))

    def _look_at_asked(self, beginning, resume):
        """What workers had ahead was drawn beside what training draws, which it is not here."""
        before = resume.get("asked_digest") if beginning.asked_before else None
        reached = beginning.drawn_before is not None
        if before is not None and before != (beginning.digest_before if reached else beginning.asked_digest):
            beginning.gives_other(beginning.asked_before)

    def _gone_on(self, beginning, saved, here):
        """The states of generators with which training goes on: as they were `saved`. Where the sampler was asked for more batches by now than
        then and drew for them, as they are `here`, unless somebody else had drawn from the same generator."""
        then = beginning.drawn_before
        if then is None or beginning.asked == beginning.asked_before:
            return saved
        then = {**then["process"], **then}
        drawn = [name for name, state in here.items() if name in saved and name in then and not _random.equal(state, then[name])]
        alone = {name: here[name] for name in drawn if _random.equal(saved[name], then[name])}
        if len(alone) < len(drawn) and not beginning.is_other:
            beginning.is_other = True
            _notices.warn(
                f"stallscope: for what workers have ahead the sampler was asked for {beginning.asked} batches of this epoch here and for {beginning.asked_before} "
                "when the checkpoint was taken, and it draws for each from a generator that others draw from, too: what follows is another order of samples; "
                "resume with the same num_workers and prefetch_factor, or give the sampler a generator of its own",
                5,
            )
        return {**saved, **alone}

    def _without_seed(self, beginning):
        """Making workers draws a seed, which a pass with those of the pass before does not."""
        self._had_workers = False
        beginning.before_order = lambda: beginning.generators.set(beginning.states)

    def _untrained(self):
        """The position that a pass took up which was left before its first step and its end: it was a look. But where the epoch before was left
        after as many batches this one was over, too."""
        if self._taken_up is None or self._under_way():
            return None
        resume, end = self._taken_up
        return None if end.reached or resume["batches"] == self._left_at else resume

    def _again(self):
        resume = self._untrained()
        if resume is not None:
            _notices.warn(
                f"stallscope: the iteration that went on behind batch {resume['batches']} was left before a step, and counts as a look, so that this one goes on "
                "there as well: look at batches before restore(); if the loop ends its epochs there, this one is the rest of that epoch",
                4,
            )
        return resume

    def _begin(self, beginning):
        # A pass that is taken up may have had others begin beside it, before the save.
        self._begun = max(self._begun, beginning.nth + 1)
        if not self._hears_steps:
            self._epochs = beginning.epoch + 1
        persistent = getattr(self, "_iterator", None)
        beginning.workers_kept = persistent is not None or beginning.before_order is not None
        if self._keys_samples():
            order = beginning.states.get("generator") or beginning.states["process"]["torch"]
            # Where torch draws workers a seed, no two passes begin alike. Of a loader that has no position nobody knows its passes after a resume.
            beginning.key = epoch_key(order, beginning.nth if beginning.workers_kept else self._anew)
            beginning.repeats = Repeats(self._samples())
            # torch's Subset asks for one after the other, whatever they come in.
            beginning.dataset = None if type(self.dataset) is torch.utils.data.Subset else self.dataset
        beginning.hears_steps, beginning.between = self._hears_steps, self._between
        self._beginning = beginning
        try:
            if persistent is not None:
                # Its sampler was wrapped for the epoch in which it was made.
                own = torchs_iterator(persistent)
                # Not by its truth, which asks a stream for its length.
                (persistent if own is None else own)._index_sampler = self._index_sampler
            inner = super().__iter__()
        finally:
            self._beginning = None
        if self._streams():
            for _ in itertools.islice(inner, beginning.skip):
                beginning.handed_over()
        elif beginning.indices is not None:
            # With workers it has happened already, for what they make ahead.
            beginning.indices.skip()
            beginning.indices.catch_up()
        beginning.is_known = self._streams() or torchs_iterator(inner) is not None or self.num_workers == 0 and beginning.indices is not None
        if self._hears_steps:
            self._demand_known(beginning)
        # No cycle may hold workers: it would be collected in whatever process happens to.
        beginning.indices = beginning.before_order = beginning.order_from = None
        beginning.after_batch = self._after_batch()
        if beginning.feed is not None:
            beginning.feed.go_on(0)
        beginning.batches_at_step = beginning.batches
        handing = Handing(inner, beginning, self._taken_up is not None)
        self._pass = weakref.ref(handing)
        self._passes = (*(one for one in self._passes if one() is not None), self._pass)
        if self._hears_steps:
            self._ends = (*self._ends, beginning.end)
        return handing

    def _demand_known(self, current):
        if not current.is_known:
            raise TypeError(
                f"loader: the position of a {type(self).__name__} is not known: its _get_iterator() gives nothing in which torch's iterator "
                "is seen, which knows what workers have ahead: have it give an object with that iterator as an attribute, or change batches in the loop"
            )

    @property
    def _index_sampler(self):
        sampler = super()._index_sampler
        beginning = self._beginning
        if beginning is not None and beginning.course is not None:
            sampler = beginning.course if self._auto_collation else uses.Singly(beginning.course)
        if beginning is None or self._streams():
            return sampler
        beginning.feed = self._feed(beginning.course)
        return Counted(sampler, beginning, self._auto_collation)

    def _next_course(self):
        older = self._pass() if self._pass is not None else None
        if older is not None and not older.ended and older.current.course is not None:
            # What is left of it is its own.
            older.current.course.keep()
        return self._order.begin(self._share_of_cache)

    def _share_of_cache(self):
        """The share of the samples that a cache holds; None without."""
        return None

    def _after_batch(self):
        """What is to be called with its pass when a batch was handed over, if anything is; holds no loader."""
        return None

    def _feed(self, course):
        """What is to hear of the samples of a pass before workers ask for them, if anything is; holds no loader."""
        return None

    def _keys_samples(self):
        """Whether random augmentation belongs to the sample here."""
        return False

    def _streams(self):
        """Whether samples have no index."""
        return isinstance(self.dataset, torch.utils.data.IterableDataset)

    def _generators(self):
        """Of the order, and of a stream's samples, the first of which are read again."""
        order = random_sources.generators(self, self.__dict__.setdefault("_held_at_first", {}))
        if self._streams():
            order.own.update(random_sources.of_samples(self, order).own)
        return order

    def unkept(self):
        """What samplers of the script's own have that has changed and is part of no position, as "Class.attribute"."""
        return [] if self._streams() else self._generators().unkept()

    def _sources(self):
        """Of the samples, as training has drawn from them since the pass began."""
        order = random_sources.generators(self, None)
        return random_sources.of_samples(self, order)

    def state_dict(self):
        """The loader's position. It is within an epoch from the first batch until the loop is left, which is after the last
        batch if it runs to its end.

        Returns:
            Plain data, arrays and tensors, for `load_state_dict()`.

        Example:
            >>> import stallscope
            >>> loader = stallscope.DataLoader(range(10), batch_size=4)
            >>> batches = iter(loader)
            >>> batch = next(batches)
            >>> position = loader.state_dict()
            >>> position["epoch"], position["batches"]
            (0, 1)
        """
        if self._resume is not None:
            # Loaded, and not begun yet.
            return _saved(self._resume)
        handing = self._trains() if self._hears_steps else self._pass() if self._pass is not None else None
        untrained = self._untrained() if handing is None else None
        if untrained is not None:
            return _saved(untrained)
        state = {"version": _VERSION, "nth": self._begun, "begun": self._begun, "samples": self._samples(), "batch_size": self.batch_size}
        state.update(left_at=self._left_at, anew=self._anew)
        if self._between is not None:
            state.update(self._between.state(None if handing is None else handing.current))
        state.update(persistent_workers.state(self))
        state["drawn_from"] = self._sources().own_states()
        if self._order is not None:
            state["sampling"] = self._order.state()
        sampler = self._epoch_sampler()
        if sampler is not None:
            state["sampler_epoch"] = sampler.epoch
        shuffled = in_loader.state(self, handing is not None and not handing.ended)
        if shuffled is not None:
            state["shuffled"] = shuffled
        if handing is None or handing.ended:
            states = self._generators().own_states()
            kept = self._had_workers or getattr(self, "_iterator", None) is not None
            return {**state, "epoch": self._epochs, "batches": None, "digest": 0, "states": states, "workers_kept": kept}
        current = handing.current
        self._demand_known(current)
        return {
            **state,
            "epoch": current.epoch,
            "nth": current.nth,
            "batches": current.batches,
            "digest": current.digest,
            "states": current.states,
            "order_states": current.order_states,
            "before": current.before,
            "began": current.began,
            "asked": current.asked,
            "asked_digest": current.asked_digest,
            "held": current.generators.scalars(current.states),
            "shared": current.generators.shared_states(),
            "workers_kept": current.workers_kept,
        }

    def load_state_dict(self, state):
        """Restores a position: the next iteration continues from there.

        Args:
            state: What `state_dict()` of this loader returned, or of an equivalent one in another process.

        Raises:
            ValueError: The position belongs to another number of samples, batch size or sampling, or to a later version.

        Example:
            >>> import stallscope
            >>> loader = stallscope.DataLoader(range(10), batch_size=4)
            >>> position = loader.state_dict()
            >>> stallscope.DataLoader(range(11), batch_size=4).load_state_dict(position)
            Traceback (most recent call last):
            ValueError: the loader's position is of 10 samples, here are 11
        """
        if state.get("version") != _VERSION:
            raise ValueError(f"the loader's position has version {state.get('version')}, this one reads {_VERSION}")
        if state.get("shuffled") is not None and state["samples"] == self._samples():
            state = in_loader.taken_up(self, state)
        for name, here in (("samples", self._samples()), ("batch_size", self.batch_size)):
            if state[name] != here:
                raise ValueError(f"the loader's position is of {state[name]} {name.replace('_', ' ')}, here are {here}")
        why = draw_order.mismatch(self._order, state.get("sampling"))
        if why and state["batches"] is not None:
            raise ValueError(f"the loader's position within an epoch is {why}")
        if not why and self._order is not None:
            self._order.load(state["sampling"])
        sampler = self._epoch_sampler()
        if sampler is not None and "sampler_epoch" in state:
            sampler.set_epoch(state["sampler_epoch"])
        persistent_workers.take_up(self, state)
        # The pass that is under way has begun, and another one after it is of the next epoch.
        under_way = state["batches"] is not None
        self._epochs = state["epoch"] + under_way
        begun = state.get("nth", state["epoch"]) + under_way
        self._begun = self._begun_at_step = state.get("begun", begun)
        self._anew = state.get("anew", 0)
        # A loop may go on with a pass of before.
        passes, self._warned_of_passes = self._passes, False
        self._forget_passes()
        self._passes, self._left_at = passes, state.get("left_at")
        if getattr(self, "_iterator", None) is not None:
            # Persistent workers that have batches of another position under way.
            self._iterator = None
        if self._between is not None:
            self._between.load(state)
        if under_way:
            self._resume = dict(state)
            return
        self._resume = None
        self._had_workers = state.get("workers_kept", False)
        self._generators().set(state["states"])
        self._sources().set(state.get("drawn_from", {}))

    def __getstate__(self):
        """A copy begins where this loader would begin its next pass, with none under way."""
        get = getattr(super(), "__getstate__", None)
        state = get() if get is not None else self.__dict__
        if not isinstance(state, dict):
            return state
        state = {name: value for name, value in state.items() if name not in _OF_PASSES}
        if state.get("_resume") is not None:
            state["_resume"] = _saved(state["_resume"])
        return state

    def __reduce_ex__(self, protocol):
        function, arguments, *rest = super().__reduce_ex__(protocol)
        # As what it was before it was given its position, which is nobody's to find by its name.
        kind = type(self).__dict__.get("_given_to")
        if kind is not None:
            function = _bare if function is copyreg.__newobj__ else function
            arguments = tuple(kind if one is type(self) else one for one in arguments)
            if rest and isinstance(rest[0], dict):
                rest[0] = {name: value for name, value in rest[0].items() if name not in {**vars(Positioned), **vars(Trained)}}
        return (function, arguments, *rest)

    def _forget_passes(self):
        self._pass = self._training = self._trained_end = self._taken_up = self._begun_first = None
        self._passes = self._ends = ()
        self._gave_last, self._steps_without = frozenset(), 0

    def begin_with_epoch(self, epoch):
        """The next iteration is this epoch's, from its start."""
        self._forget_passes()
        self._epochs = self._begun = self._begun_at_step = self._anew = epoch
        self._resume = None

    def take_waited_ns(self):
        """How long loops waited for batches since this was asked last."""
        waited_ns = 0
        for handing in self._under_way():
            waited_ns += handing.current.waited_ns
            handing.current.waited_ns = 0
        return waited_ns

    def go_on_with(self, process, taken=None):
        """The generators' states once the position that was loaded is taken up, or what gives them then; None to leave them. `taken`: of several
        loaders, their own generators with which one of them has gone on."""
        taken = set() if taken is None else taken
        if self._resume is not None:
            self._resume.update(process=process, taken=taken)
        elif callable(process):
            # Of several loaders the first that is iterated.
            self._begun_first = process, taken

    def draws_again(self):
        """The generators' states for what the script draws until the position that was loaded is taken up, where it drew there before; None: those
        that were saved."""
        resume = self._resume
        if resume is None or resume.get("draws_first") or resume.get("before") is None:
            return None
        resume["draws_again"] = True
        return resume["before"]

    def _samples(self):
        if self._streams():
            return None
        try:
            return len(self.dataset)
        except Exception as error:
            # With a sampler of the script's torch asks no data set for its length, which may then refuse to say it.
            if raised_by_signal(error):
                raise
            return None

    def _epoch_sampler(self):
        """The sampler whose epoch has to be set, as torch's DistributedSampler."""
        for sampler in (self.sampler, attribute_of(self.batch_sampler, "sampler"), self.batch_sampler):
            if attribute_of(sampler, "set_epoch") is not None and isinstance(attribute_of(sampler, "epoch"), int):
                return sampler
        return None


# Of passes that are under way or were, which a copy of the loader has nothing of.
_OF_PASSES = {"_pass", "_passes", "_ends", "_trained_end", "_begun_first", "_warned_of_passes", "_training", "_taken_up", "_beginning", "_fork_safe_lock"}
_OF_PASSES |= {"_steps_without", "_gave_last", "_has_two_passes"}


def before(state, batches):
    """The position `state` as it was so many batches before, where it is one within an epoch; what else it is, as it is."""
    if not isinstance(state, dict) or "digest" not in state or state.get("batches") is None:
        return state
    # What was drawn for those batches is drawn.
    drawn = {name: {} if batches else state.get(name, {}) for name in ("drawn_from", "shared")}
    return {**state, "batches": max(0, state["batches"] - batches), "digest": None, **drawn}


def _saved(resume):
    """A position that was loaded, without what is for the pass that takes it up."""
    return {name: value for name, value in resume.items() if name not in ("process", "taken", "draws_again")}


def _bare(kind, *arguments):
    """As copyreg.__newobj__, which pickle lets name no other class than the object's own."""
    return kind.__new__(kind, *arguments)
