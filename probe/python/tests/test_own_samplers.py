"""Samplers of a script's own, with generators, counters or lists of their own, go on in the order in which they would have gone on."""

import collections
import copy
import itertools
import random
import types
import warnings

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
numpy = pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")

import stallscope  # noqa: E402
from stallscope import _random  # noqa: E402
from stallscope.data.resume.given import position  # noqa: E402

SAMPLES, BATCH = 30, 5


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index


class Own:
    """A sampler by some source of its order."""

    def __init__(self, source):
        self.source, self.seed, self.began = source, 5, 0
        if source == "torch":
            self.drawn_from = torch.Generator().manual_seed(5)
        elif source == "numpy":
            self.rng = numpy.random.default_rng(5)
        elif source == "numpy's older":
            self.rng = numpy.random.RandomState(5)
        elif source == "python":
            self.rng = random.Random(5)

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        if self.source == "torch":
            order = torch.randperm(SAMPLES, generator=self.drawn_from).tolist()
        elif self.source.startswith("numpy"):
            order = self.rng.permutation(SAMPLES).tolist()
        elif self.source == "python":
            order = self.rng.sample(range(SAMPLES), SAMPLES)
        else:
            order = random.Random(self.seed + self.began).sample(range(SAMPLES), SAMPLES)
        self.began += 1
        yield from order


class OwnBatches(Own):
    def __len__(self):
        return SAMPLES // BATCH

    def __iter__(self):
        order = list(super().__iter__())
        yield from (order[at : at + BATCH] for at in range(0, SAMPLES, BATCH))


class Holding(Own):
    """One that shuffles what it holds, in place or not, each time it is iterated: the order of an epoch comes from the one before."""

    def __init__(self, source):
        self.held = {
            "a list": lambda: list(range(SAMPLES)),
            "an array": lambda: numpy.arange(SAMPLES),
            "a tensor": lambda: torch.arange(SAMPLES),
            "bins": lambda: [list(range(at, at + BATCH)) for at in range(0, SAMPLES, BATCH)],
            "classes": lambda: {name: list(range(at, SAMPLES, 2)) for at, name in enumerate(("even", "odd"))},
            "pairs": lambda: [(at, at + 1) for at in range(0, SAMPLES, 2)],
            "ranges": lambda: [range(at, at + BATCH) for at in range(0, SAMPLES, BATCH)],
            "arrays": lambda: numpy.array_split(numpy.arange(SAMPLES), 6),
            "a share": lambda: 0.5,
            "a share of numpy's": lambda: numpy.float64(0.5),
        }[source]()
        self.again = self.held
        self.first = False

    def __iter__(self):
        held, kind = self.held, type(self.held)
        if kind is torch.Tensor:
            held = self.held = held[torch.randperm(SAMPLES)]
        elif isinstance(held, float):
            self.first, self.held = not self.first, held * 0.9 + 0.05
            shuffled = torch.randperm(int(SAMPLES * held)).tolist()
            return iter((shuffled + list(range(SAMPLES)))[:SAMPLES] if self.first else range(SAMPLES))
        for one in held.values() if kind is dict else [held] if kind is not torch.Tensor else ():
            (numpy.random if kind is numpy.ndarray else random).shuffle(one)
        return iter(flat(held))


def flat(held):
    for one in held.values() if isinstance(held, dict) else held:
        if isinstance(one, (list, tuple, range, numpy.ndarray)):
            yield from map(int, one)
        else:
            yield int(one)


SOURCES = ["torch", "numpy", "numpy's older", "python", "a counter"]
HELD = ["a list", "an array", "a tensor", "bins", "classes", "pairs", "ranges", "arrays", "a share", "a share of numpy's"]


def made(source, batches):
    if source in HELD:
        sampler = Holding(source)
        batched = torch.utils.data.BatchSampler(sampler, BATCH, drop_last=False)
        return stallscope.DataLoader(Samples(), **({"batch_sampler": batched} if batches else {"batch_size": BATCH, "sampler": sampler}))
    if batches:
        return stallscope.DataLoader(Samples(), batch_sampler=OwnBatches(source))
    return stallscope.DataLoader(Samples(), batch_size=BATCH, sampler=Own(source))


@pytest.mark.parametrize("batches", [False, True], ids=["sampler", "batch sampler"])
@pytest.mark.parametrize("source", SOURCES + HELD)
def test_it_goes_on_as_it_would_have(source, batches):
    seed()
    loader = made(source, batches)
    whole = [[batch.tolist() for batch in loader] for _ in range(3)]
    # Between the second epoch and the third, and within the second.
    seed()
    loader = made(source, batches)
    for _ in range(2):
        list(loader)
    state, process = loader.state_dict(), _random.capture()
    again = made(source, batches)
    again.load_state_dict(state)
    _random.restore(process)
    assert [batch.tolist() for batch in again] == whole[2]
    seed()
    loader = made(source, batches)
    list(loader)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    again = made(source, batches)
    again.load_state_dict(state)
    again.go_on_with(_random.capture())
    assert [[batch.tolist() for batch in again] for _ in range(2)] == [whole[1][2:], whole[2]]


def seed():
    torch.manual_seed(4)
    random.seed(4)
    numpy.random.seed(4)


def test_others_that_hold_the_same_list_have_what_was_taken_up():
    loader = made("a list", False)
    list(loader)
    again = made("a list", False)
    shared = again.sampler.held
    again.load_state_dict(loader.state_dict())
    assert again.sampler.held is shared and shared == loader.sampler.held


def test_what_is_no_plain_data_stays_the_scripts():
    def make():
        loader = made("a list", False)
        loader.sampler.itself = [loader.sampler]
        loader.sampler.itself.append(loader.sampler.itself)
        loader.sampler.log = []
        return loader

    loader = make()
    list(loader)
    loader.sampler.itself.append(1)
    again = make()
    again.load_state_dict(loader.state_dict())
    assert len(again.sampler.itself) == 2


def test_a_setting_is_the_scripts():
    loader = made("a counter", False)
    list(loader)
    again = made("a counter", False)
    again.sampler.seed = 8
    again.load_state_dict(loader.state_dict())
    assert (again.sampler.seed, again.sampler.began) == (8, 1)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (list(range(20)), lambda held: held.reverse()),
        (list(range(20)), lambda held: held.__setitem__(3, torch.arange(2))),
        ([[1, 2], [3]], lambda held: held[1].append(4)),
        ([(1, [2]), (3, [4])], lambda held: held[0][1].append(5)),
        ({"a": 1, "b": 2}, lambda held: held.update(a=held.pop("a"))),
        ({"a": [1], "b": [2]}, lambda held: held["b"].append(3)),
        ({1: [1], 2: [2]}, lambda held: held.update({1: held.pop(1)})),
        ([{"a": 1}], lambda held: held[0].update(a=2)),
        ([range(3), range(4)], lambda held: held.reverse()),
        ([numpy.arange(3), numpy.arange(4)], lambda held: held[0].sort() or held[0].__setitem__(0, 7)),
        ({1, 2}, lambda held: held.add(3)),
        (numpy.arange(5), lambda held: held.__setitem__(0, 3)),
    ],
)
def test_a_change_in_place_is_seen_and_the_same_content_is_none(value, change):
    from stallscope.data.resume import held

    look = held.look(value)
    assert look.is_of(value) and look.is_of(copy.deepcopy(value))
    change(value)
    assert not look.is_of(value)


@pytest.mark.parametrize("value", [[1 << 70] * 9, [True] * 9, list(range(-9, 9)), [-(1 << 63)] * 9, [[], list(range(9))], [[1 << 63] * 9]])
def test_numbers_come_back_as_they_were(value):
    from stallscope.data.resume import held

    back = held.unpacked(held.packed(value))
    assert back == value and repr(back) == repr(value)


class Sized:
    def __len__(self):
        return SAMPLES


def turned(rounds):
    return [(index * 7 + rounds) % SAMPLES for index in range(SAMPLES)]


class CountingFromItsClass(Sized):
    rounds = 0

    def __iter__(self):
        self.rounds += 1
        yield from turned(self.rounds)


class CountingAsTorchs(torch.utils.data.RandomSampler):
    rounds = 0

    def __iter__(self):
        self.rounds += 1
        yield from turned(self.rounds)


class CountingFromNothing(Sized):
    def __iter__(self):
        self.rounds = getattr(self, "rounds", 0) + 1
        yield from turned(self.rounds)


class CountingInSlots(Sized):
    __slots__ = ("__rounds",)

    def __init__(self):
        self.__rounds = 0

    def __iter__(self):
        self.__rounds += 1
        yield from turned(self.__rounds)


class ShufflingItsClasss(Sized):
    order = list(range(SAMPLES))

    def __iter__(self):
        self.order.append(self.order.pop(3))
        yield from list(self.order)


class DrawingLater(Sized):
    """From a generator that it makes when it is first iterated."""

    def __init__(self, make, is_named=True):
        self.make = make
        if is_named:
            self.rng = None

    def __iter__(self):
        if getattr(self, "rng", None) is None:
            self.rng = self.make()
        if isinstance(self.rng, torch.Generator):
            return iter(torch.randperm(SAMPLES, generator=self.rng).tolist())
        return iter(sorted(range(SAMPLES), key=lambda index: self.rng.random()))


class DrawingLaterByTheUsualName(Sized):
    generator = None

    def __iter__(self):
        self.generator = self.generator or torch.Generator().manual_seed(3)
        return iter(torch.randperm(SAMPLES, generator=self.generator).tolist())


LATER = {
    "its class's": CountingFromItsClass,
    "beside torch's": lambda: CountingAsTorchs(range(SAMPLES)),
    "from nothing": CountingFromNothing,
    "slots": CountingInSlots,
    "torch": lambda: DrawingLater(lambda: torch.Generator().manual_seed(3)),
    "torch, without a name": lambda: DrawingLater(lambda: torch.Generator().manual_seed(3), False),
    "torch, by the usual name": DrawingLaterByTheUsualName,
    "python": lambda: DrawingLater(lambda: random.Random(3)),
    "numpy": lambda: DrawingLater(lambda: numpy.random.Generator(numpy.random.Philox(3))),
    "numpy's older": lambda: DrawingLater(lambda: numpy.random.RandomState(3)),
}


def lives(sampler, stops):
    """What each epoch has, of a loader that is taken up by another one wherever a count of batches is in `stops`."""
    loader, got, batches = (torch.utils.data.DataLoader(Samples(), batch_size=BATCH, sampler=sampler()) for _ in range(9)), [], 0
    one = position(next(loader))
    state = one.state_dict()
    while len(got) < 4 * SAMPLES:
        for batch in one:
            got += batch.tolist()
            batches += 1
            if batches in stops:
                state = one.state_dict()
                break
        if -batches in stops:
            state = one.state_dict()
        if not stops.isdisjoint((batches, -batches)):
            one = position(next(loader))
            one.load_state_dict(state)
    return got


# At the end of the second epoch; within it; both, and again.
@pytest.mark.parametrize("stops", [{-12}, {8}, {8, -12, -18, 20}], ids=str)
@pytest.mark.parametrize("name", LATER)
def test_what_came_later_goes_on_as_well(name, stops):
    assert lives(LATER[name], stops) == lives(LATER[name], set())


def test_what_its_class_has_is_put_back_in_place():
    first = stallscope.DataLoader(Samples(), batch_size=BATCH, sampler=ShufflingItsClasss())
    first.state_dict()
    list(first)
    state, order = first.state_dict(), ShufflingItsClasss.order[:]
    ShufflingItsClasss.order.sort()
    again = stallscope.DataLoader(Samples(), batch_size=BATCH, sampler=ShufflingItsClasss())
    again.load_state_dict(state)
    assert ShufflingItsClasss.order == order and "order" not in vars(again.sampler)


def test_a_generator_that_a_script_takes_away_stays_away():
    loader = stallscope.DataLoader(Samples(), batch_size=BATCH, sampler=Own("torch"))
    loader.state_dict()
    list(loader)
    again = stallscope.DataLoader(Samples(), batch_size=BATCH, sampler=Own("torch"))
    again.sampler.drawn_from = None
    again.load_state_dict(loader.state_dict())
    assert again.sampler.drawn_from is None


class Counts:
    def __init__(self):
        self.rounds = 0


def enclosed():
    rounds = 0

    def count():
        nonlocal rounds
        rounds += 1

    return count


class Reading(torch.utils.data.Dataset):
    def __init__(self):
        self.read = {}

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.read.setdefault(index, index)


UNKEPT = {
    "a deque": (lambda: collections.deque(range(9)), lambda held: held.rotate()),
    "a long deque": (lambda: collections.deque(range(9000)), lambda held: held.rotate()),
    "counts": (lambda: collections.Counter(range(9000)), lambda held: held.update([3])),
    "lists of classes": (lambda: collections.defaultdict(list, {1: [2, 3]}), lambda held: held[1].reverse()),
    "an object": (lambda: types.SimpleNamespace(rounds=0), lambda held: vars(held).update(rounds=held.rounds + 1)),
    "one of the script's": (Counts, lambda held: vars(held).update(rounds=held.rounds + 1)),
    "generators": (lambda: [random.Random(3), torch.Generator(), numpy.random.RandomState(3)], lambda held: held[2].random_sample()),
    "what a function encloses": (enclosed, lambda held: held()),
    "a count": (lambda: itertools.count(), next),
    "an iterator": (lambda: iter([*range(90)]), next),
    "another sampler": (CountingFromItsClass, lambda held: next(iter(held))),
}


class Changing(Sized):
    def __init__(self, held, change):
        self.held, self.change = held, change

    def __iter__(self):
        self.change(self.held)
        return iter(range(SAMPLES))


class CountingInItsClass(Sized):
    held = 0

    def __iter__(self):
        type(self).held += 1
        return iter(range(SAMPLES))


def warnings_of(folder, sampler, dataset):
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with stallscope.Checkpointer(folder, loader=loader, signals=(), every=10**6) as checkpointer:
            for _ in range(2):
                for _ in loader:
                    checkpointer.step()
                checkpointer.save(wait=True)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", UNKEPT)
def test_what_changes_and_is_not_kept_is_named_once(tmp_path, name):
    make, change = UNKEPT[name]
    (warning,) = warnings_of(tmp_path, Changing(make(), change), Samples())
    assert "Changing.held, which the loader's sampler has, changed and is not saved" in warning


def test_a_long_look_is_made_again_later(monkeypatch):
    from stallscope.data.resume import held, opaque

    sampler = Changing(Counts(), None)
    kept = held.Held(sampler, held.looks(sampler))
    monkeypatch.setattr(opaque, "_SHORT_NS", -1)
    monkeypatch.setattr(opaque, "_APART", 10**12)
    assert kept.unkept() == []
    sampler.held.rounds = 1
    assert kept.unkept() == []
    kept.before["held"]._again_ns = 0
    assert kept.unkept() == kept.unkept() == ["held"]


@pytest.mark.parametrize("later", ["tensor", "raises"])
def test_what_numbers_give_way_to_is_not_compared_with_them(tmp_path, later):
    class Raises:
        def __eq__(self, other):
            raise RuntimeError("nothing is to ask this")

        __hash__ = None

    def change(held):
        held[0] = torch.arange(3) if later == "tensor" else Raises()

    (warning,) = warnings_of(tmp_path, Changing(collections.deque([1, 2, 3]), change), Samples())
    assert "Changing.held, which the loader's sampler has, changed and is not saved" in warning


def test_a_count_in_the_class_itself_is_too(tmp_path):
    (warning,) = warnings_of(tmp_path, CountingInItsClass(), Samples())
    assert "CountingInItsClass.held, which" in warning


@pytest.mark.parametrize("name", [*UNKEPT, "a data set", "a module"])
def test_what_does_not_change_or_is_no_samplers_is_not(tmp_path, name):
    dataset, module = Reading(), torch.nn.Linear(2, 2)
    more = {
        "a data set": (lambda: dataset, lambda held: None),
        "a module": (lambda: [module], lambda held: torch.nn.init.ones_(held[0].weight)),
    }
    make, change = more.get(name) or (UNKEPT[name][0], lambda held: None)
    assert warnings_of(tmp_path, Changing(make(), change), dataset) == []
