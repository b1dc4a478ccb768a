"""The order of a loader's samples where we draw it: draws planned ahead, this rank's part of them, and the position.

Draws are one stream over the whole run; a *place* is a number of draws since its first, of all ranks. An epoch is a
chunk of it, a global batch a part of that, and a rank's batch its part of this. More is planned when training asks
for a batch, by what was handed over and learnt until then: so what is drawn does not depend on how far workers read ahead.
"""

import weakref

import torch

from stallscope import _native, _notices

from . import scores, window
from .uses import Course

# Next uses that go to the pool after one batch.
_LATE_AT_ONCE = 8192
# Whose epochs are passes over the samples; those of others are as many draws as there are samples.
_BY_PASS = ("iis", "plain")
_LEARNING = ("importance", "iis", "shade")
_PLACE = ("handed", "start", "end", "chunk")


class Order:
    """Also a sampler of torch's kind: who iterates it without its loader gets the next epoch's draws."""

    def __init__(
        self, sampling, samples, *, batch_size, drop_last, generator, ranks, uses, epochs, cache_share, classes,
        substitution=None,
    ):  # fmt: skip
        self.sampling = sampling
        self.samples = samples
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.generator = generator
        self.ranks = ranks
        self.requested = {"uses": uses, "epochs": epochs, "cache_share": cache_share}
        self.classes = classes
        # What may give other samples than were drawn; None: nothing.
        self.substitution = substitution
        # What says which samples go to packages; None: none do.
        self.packing = None
        self.scores = scores.Scores(samples)
        self.learns = sampling in _LEARNING
        # The pool that learns next uses, where there is one.
        self.pool = None
        # The kind of draws, its seed and its parameters, once they are settled.
        self.settled = None
        self.planner = None
        self.handed = self.start = self.end = 0
        self.chunk = -1
        self._course = None
        # Draws that training was given, and not those that were left out.
        self._given = 0
        self._warned = False

    # As a sampler

    def __iter__(self):
        course = self.begin()
        for batch, uses in enumerate(course):
            yield from uses
            course.handed_over(batch)

    def __len__(self):
        """Draws of this rank in the epoch under way, or else in the next."""
        if self.planner is not None and self.settled["kind"] in _BY_PASS and self.chunk >= 0:
            return (self.end - self.start) // self.ranks.count
        return self._rounded(-(-self.samples // self.ranks.count))

    def _rounded(self, draws):
        return draws // self.batch_size * self.batch_size if self.drop_last else draws

    # For the loader

    def begin(self, share_of_cache=None):
        """The next epoch. `share_of_cache()`: the share of the samples that the cache holds."""
        if self.planner is None:
            self._settle(share_of_cache)
        if self.settled["kind"] in _BY_PASS and self.chunk >= 0:
            # What is left of the pass before is not used.
            self._hand_over(self.planner.chunk_end(self.chunk) or self.handed)
        self._look_ahead()
        self.chunk += 1
        self.start = self.handed
        if self.settled["kind"] in _BY_PASS:
            draws = (self.planner.chunk_end(self.chunk) - self.start) // self.ranks.count
        else:
            draws = -(-self.samples // self.ranks.count)
        self.end = self.start + self._rounded(draws) * self.ranks.count
        self.planner.give_back(self.start)
        self.planner.reach(self.end)
        if self.substitution is not None:
            self.substitution.rules.begin(self.start)
        if self.pool is not None and self.start:
            self.pool.epoch()
        if self.packing is not None:
            self.packing.begin(self)
        return self._begun(0)

    def begin_again(self):
        """The epoch whose position was loaded, behind the last batch that was handed over."""
        self.planner.give_back(self.handed)
        if self.packing is not None:
            self.packing.begin(self)
        return self._begun(-(-(self.handed - self.start) // (self.batch_size * self.ranks.count)))

    def _begun(self, batch):
        course = Course(self, batch)
        self._course = weakref.ref(course)
        return course

    def is_newest(self, course):
        return self._course is not None and self._course() is course

    def part(self, start, end, batch):
        """Place and number of this rank's draws of a batch of an epoch; and where the batch ends, for all ranks."""
        whole = self.batch_size * self.ranks.count
        first = min(start + batch * whole, end)
        last = min(first + whole, end)
        each = (last - first) // self.ranks.count
        return first + self.ranks.rank * each, each, last

    def asked(self):
        """Training asks for a batch. Collective where a chunk of draws is to be planned."""
        self._look_ahead()

    def handed_over(self, place):
        self._given += max(place - self.handed, 0)
        self._hand_over(place)
        # Faster than they become known, so that they do not pile up, whether or not anybody hears them.
        late = self.planner.late_uses(place, max(_LATE_AT_ONCE, 2 * self.batch_size * self.ranks.count))
        if self.pool is None:
            return
        mine = [(index, next_at) for index, at, next_at in late if self._is_mine(index, at)]
        if mine:
            self.pool.planned(mine)

    def leave(self, place):
        """What is before `place` is somebody's, who does not report."""
        self._hand_over(place)

    def _hand_over(self, place):
        self.handed = place
        self.planner.let_go(place)
        if self.substitution is not None:
            self.substitution.rules.handed_over(place)

    def _is_mine(self, index, at):
        """Whether it is this rank that tells the pool of a next use: each does so of its own, and of those of earlier
        epochs the ranks of a node share."""
        if at < self.start:
            return index % self.ranks.local_count == self.ranks.local_rank
        place, count, _ = self.part(self.start, self.end, (at - self.start) // (self.batch_size * self.ranks.count))
        return place <= at < place + count

    def _look_ahead(self):
        if not self.planner.has_to_plan(self.handed):
            return
        if self.learns:
            self._learn()
        self.planner.plan(self.handed)

    def _learn(self):
        """From the losses of all ranks since the last time."""
        lengths, ids, losses = scores.in_turn(self.ranks.gather(self.scores.take()))
        self.planner.learn(lengths, ids, losses)
        if self.pool is not None and self.sampling != "importance":
            ids = sorted({one for one in ids if one % self.ranks.local_count == self.ranks.local_rank})
            self.pool.scored(self.planner.scores(ids))
        if self._given >= self.samples and not self.scores.has_losses and not self._warned:
            self._warned = True
            _notices.warn(
                f"stallscope: sampling={self.sampling!r} has heard of no losses in an epoch, so that all samples count "
                "the same: call loader.update(ids, losses) after each batch of loader.weighted()",
                5,
            )

    def _settle(self, share_of_cache):
        self.ranks.begin()
        if self.ranks.of_others and self.generator is None:
            # As DistributedSampler: ranks that cannot be asked have to agree.
            seed = 0
        else:
            seed = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=self.generator).item()
        settled, why = {"kind": self.sampling, "seed": seed}, None
        if self.sampling == "reuse" and (self.ranks.rank == 0 or self.ranks.of_others):
            settled, why = window.settled(self, seed, share_of_cache)
        settled, why = self.ranks.from_first((settled, why))
        if why:
            _notices.warn(f"stallscope: sampling={self.sampling!r} {why}", 4)
        self._plan_with(settled, None)

    def _plan_with(self, settled, state, place=None):
        parameters = {name: value for name, value in settled.items() if name not in ("kind", "seed")}
        planner = _native.Planner(
            settled["kind"], self.samples, settled["seed"], classes=self.classes, state=state, **parameters
        )
        if place is not None and not _is_planned(place, *planner.planned()):
            raise ValueError("the state is damaged, or of other draws")
        self.planner = planner
        self.settled = settled
        if self.substitution is not None:
            self.substitution.settle(settled["seed"], self.ranks)

    # The position

    def state(self):
        """Plain data."""
        if self.planner is None:
            return identity(self)
        place = {name: getattr(self, name) for name in _PLACE}
        draws, losses = self.planner.save(), self.scores.state()
        state = {**identity(self), **place, "settled": self.settled, "draws": draws, "told": losses}
        if self.substitution is not None:
            state["substituted"] = self.substitution.state()
        return state

    def load(self, state):
        """A state for which `mismatch` has no words. ValueError where it is damaged."""
        if "draws" not in state:
            return
        self.ranks.begin()
        place = {name: state[name] for name in _PLACE}
        self._plan_with(dict(state["settled"]), state["draws"], place)
        for name in _PLACE:
            setattr(self, name, place[name])
        self.scores.load(state["told"])
        if self.substitution is not None:
            self.substitution.load(state.get("substituted"))


def _is_planned(place, first, drawn):
    """Whether a position is within the draws that are planned: what lies behind them would be planned first, however far that is."""
    handed, start, end, chunk = (place[name] for name in _PLACE)
    if any(type(one) is not int for one in (handed, start, end, chunk)):
        return False
    return 0 <= start <= handed <= end <= drawn and first <= handed and -1 <= chunk < 1 << 62


def identity(order):
    """What a position of `order` has to be of; None: of torch's own order."""
    if order is None:
        return {"sampling": "plain"}
    return {
        "sampling": order.sampling,
        "samples": order.samples,
        "ranks": order.ranks.count,
        "batch_size": order.batch_size,
    }


def mismatch(order, state):
    """Why `state` is no position of `order`; None where it is one."""
    there, here = state or identity(None), identity(order)
    for name in here:
        if there.get(name) != here[name]:
            return f"of {name.replace('_', ' ')} {there.get(name)!r}, here is {here[name]!r}"
    return None
