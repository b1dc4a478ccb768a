"""Which samplers may give another order where they are asked further ahead: any but those whose draws are known."""

import collections
import importlib
import itertools
import math
import multiprocessing
import os
import queue
import random
import sys
import types
from pathlib import Path

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from drawing import ITEMS, Iterator, draw  # noqa: E402
from torch.utils import data  # noqa: E402

from stallscope._hooks import order  # noqa: E402

# As a module of the script's that it keeps settings in.
SETTINGS = types.ModuleType("settings_of_the_script")
SETTINGS.level = 0


class Own(data.Sampler):
    """Of a script: shuffles at its beginning, and once more in mid-epoch where `late`."""

    def __init__(self, late=False):
        self.late = late

    def __len__(self):
        return 20

    def __iter__(self):
        indices = list(range(20))
        random.shuffle(indices)
        yield from indices[:10]
        if self.late:
            random.random()
        yield from indices[10:]



class Shifted(list):
    def __iter__(self):
        for one in super().__iter__():
            yield (one + random.randrange(2)) % 20


@pytest.mark.parametrize(
    ("known", "options"),
    [
        pytest.param(True, {}, id="in sequence"),
        pytest.param(True, {"shuffle": True}, id="shuffled"),
        pytest.param(True, {"shuffle": True, "batch_size": None}, id="shuffled, not batched"),
        pytest.param(True, {"sampler": data.RandomSampler(ITEMS, replacement=True, num_samples=50)}, id="with replacement"),
        pytest.param(True, {"sampler": data.WeightedRandomSampler([1.0] * 20, 20)}, id="weighted"),
        pytest.param(True, {"sampler": range(20)}, id="a range"),
        pytest.param(True, {"batch_sampler": [[0, 1], [2]]}, id="lists of batches"),
        pytest.param(False, {"sampler": Shifted(range(20))}, id="a list that the script iterates by itself"),
        pytest.param(True, {"batch_sampler": data.BatchSampler(data.SequentialSampler(ITEMS), 4, False)}, id="batches in sequence"),
        pytest.param(False, {"sampler": Own()}, id="the script's"),
        pytest.param(False, {"batch_sampler": data.BatchSampler(Own(), 4, False)}, id="batches of the script's"),
        pytest.param(True, {"shuffle": True, "generator": torch.Generator()}, id="shuffled by a generator"),
        pytest.param(
            False, {"sampler": data.RandomSampler(ITEMS, num_samples=50, generator=torch.Generator())}, id="several times by a generator"
        ),
        pytest.param(
            False, {"sampler": data.RandomSampler(ITEMS, replacement=True, generator=torch.Generator())}, id="with replacement by a generator"
        ),
        pytest.param(
            False,
            {"sampler": data.RandomSampler(ITEMS, replacement=True, generator=torch.default_generator)},
            id="with the process's generator",
        ),
    ],
)
def test_torchs_samplers_are_known_unless_they_draw_from_the_processs_generators(known, options):
    assert order.of(data.DataLoader(ITEMS, **options)).is_known == known


def test_a_sampler_of_torchs_with_code_of_the_scripts_is_not_known(monkeypatch):
    torchs = data.RandomSampler.__iter__

    def shifted(self):
        for one in torchs(self):
            yield (one + random.randrange(2)) % 20

    assert order.Order(data.DataLoader(ITEMS, shuffle=True)).is_known
    monkeypatch.setattr(data.RandomSampler, "__iter__", shifted)
    assert not order.Order(data.DataLoader(ITEMS, shuffle=True)).is_known


class Asked(data.BatchSampler):
    """Draws batches to know how many there are."""

    asked = 0

    def __len__(self):
        self.asked += 1
        return sum(1 for _ in self)


def test_a_scripts_sampler_over_one_of_torchs_is_not_asked_how_many_batches_it_has():
    sampler = Asked(data.RandomSampler(ITEMS), 4, False)
    iterator = iter(data.DataLoader(ITEMS, batch_sampler=sampler))
    order.begin(iterator, data.DataLoader(ITEMS, batch_sampler=sampler))
    assert order.end(iterator) is None and not sampler.asked
    torchs = data.DataLoader(ITEMS, shuffle=True, batch_size=4)
    iterator = iter(torchs)
    order.begin(iterator, torchs)
    assert order.end(iterator) == 4


@pytest.mark.parametrize("late", [False, True], ids=["at the beginning", "in mid-epoch"])
def test_draws_in_mid_epoch_are_distinguished_from_those_at_its_beginning(late):
    loader = data.DataLoader(ITEMS, batch_size=2, sampler=Own(late))
    iterator = Iterator(loader)
    found = order.of(loader)
    for _ in range(4):
        draw(iterator)
        # Training's own.
        random.random()
    assert (found.draws_late, found.was_watched) == (False, False)
    with pytest.raises(StopIteration):
        while True:
            draw(iterator)
    assert (found.draws_late, found.was_watched) == (late, not late)
    # A loader that the script makes anew, and one of another kind.
    again, other = order.Order(data.DataLoader(ITEMS, sampler=Own(late))), order.Order(data.DataLoader(ITEMS, sampler=range(20)))
    again.succeeds(found)
    other.succeeds(found)
    assert (again.draws_late, again.was_watched) == (late, not late)
    assert (other.draws_late, other.was_watched) == (False, False)


class Slotted:
    __slots__ = ("level",)


def slotted():
    one = Slotted()
    one.level = 0
    return one


HOLDS = {
    "list": lambda: [0.0] * 20,
    "numpy": lambda: numpy.zeros(20),
    "tensor": lambda: torch.zeros(20),
    "generator": lambda: random.Random(3),
    "count": lambda: 0,
    "defaultdict": lambda: collections.defaultdict(float),
    "deque": lambda: collections.deque([0.0], maxlen=8),
    "ordered": lambda: collections.OrderedDict(a=1, b=2),
    "bytearray": lambda: bytearray(20),
    "dicts in a list": lambda: [{"loss": 0.0} for _ in range(20)],
    "objects in a list": lambda: [types.SimpleNamespace(loss=0.0) for _ in range(20)],
    "numpy's objects": lambda: numpy.array([{"loss": 0.0}, None], dtype=object),
    "slots": slotted,
    "the data set's": lambda: None,
    "a module's": lambda: None,
}


class Held(data.Sampler):
    """Of a script: holds something; what it does with it is what `between` says, before each index but the first."""

    def __init__(self, held):
        self.held = held
        self.between = None
        self.source = data.TensorDataset(torch.arange(20))
        self.source.level = 0

    def __len__(self):
        return 20

    def __iter__(self):
        for index in range(20):
            if index and self.between is not None:
                self.between(self)
            yield index + 0 * (self.source.level + SETTINGS.level)
        # Of the epoch's end.
        self.ended = True


def count(sampler):
    sampler.held += 1


def write(sampler):
    sampler.held[3] += 1


def add_to(name):
    def add(sampler):
        owner = {"source": sampler.source, "settings": SETTINGS}.get(name, sampler.held)
        owner.level += 1

    return add


MOVES = {
    "list": write,
    "numpy": write,
    "tensor": write,
    "generator": lambda sampler: sampler.held.random(),
    "count": count,
    "defaultdict": write,
    "deque": lambda sampler: sampler.held.append(1.0),
    "ordered": lambda sampler: sampler.held.move_to_end(next(iter(sampler.held))),
    "bytearray": write,
    "dicts in a list": lambda sampler: sampler.held[3].update(loss=sampler.held[3]["loss"] + 1),
    "objects in a list": lambda sampler: vars(sampler.held[18]).update(loss=sampler.held[18].loss + 1),
    "numpy's objects": lambda sampler: sampler.held[0].update(loss=sampler.held[0]["loss"] + 1),
    "slots": add_to("held"),
    "the data set's": add_to("source"),
    "a module's": add_to("settings"),
}


@pytest.mark.parametrize("who", ["the sampler", "training", "nobody"])
@pytest.mark.parametrize("kind", MOVES)
def test_what_a_sampler_holds_is_watched_too(kind, who):
    sampler = Held(HOLDS[kind]())
    if who == "the sampler":
        sampler.between = MOVES[kind]
    loader = data.DataLoader(sampler.source, batch_size=3, sampler=sampler)
    found, iterator = order.of(loader), Iterator(loader)
    with pytest.raises(StopIteration):
        while True:
            draw(iterator)
            if who == "training":
                MOVES[kind](sampler)
    assert found.draws_late == (who != "nobody")


class Levels(data.Dataset):
    """Its samples are made with what training sets."""

    def __init__(self, level):
        self.level = level

    def __len__(self):
        return 20


SHARED = {
    "a value": (lambda: multiprocessing.Value("d"), lambda level: setattr(level, "value", level.value + 1)),
    "an array": (lambda: multiprocessing.RawArray("d", 4), lambda level: level.__setitem__(1, level[1] + 1)),
    "a tensor": (lambda: torch.zeros(3).share_memory_(), lambda level: level.add_(1)),
}


@pytest.mark.parametrize("sets", [True, False], ids=["set by training", "set by nobody"])
@pytest.mark.parametrize("kind", SHARED)
def test_memory_that_a_data_set_shares_with_training_is_watched(kind, sets):
    make, move = SHARED[kind]
    dataset = Levels(make())
    loader = data.DataLoader(dataset, batch_size=2, shuffle=True)
    found, iterator = order.of(loader), Iterator(loader)
    assert not found.is_known
    with pytest.raises(StopIteration):
        while True:
            draw(iterator)
            if sets:
                move(dataset.level)
    assert (found.draws_late, found.was_watched) == (sets, not sets)


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(lambda: itertools.count(), id="an iterator"),
        pytest.param(lambda: queue.SimpleQueue(), id="a queue"),
        pytest.param(lambda: open(__file__), id="a file"),
        pytest.param(lambda: [0.0] * 200_000, id="a long list"),
        pytest.param(lambda: numpy.zeros(2_000_000), id="a large array"),
    ],
)
def test_what_cannot_be_compared_is_taken_to_change(held):
    loader = data.DataLoader(ITEMS, batch_size=3, sampler=Held(held()))
    draw(Iterator(loader))
    assert order.of(loader).draws_late


# As a library that is installed.
LIBRARY = types.ModuleType("library_of_others")
LIBRARY.__file__ = "/nowhere/site-packages/library_of_others.py"
sys.modules["library_of_others"] = LIBRARY
exec(
    """
level = 0
def get():
    return level
def made():
    return lambda: level
class Base:
    level = 0
""",
    vars(LIBRARY),
)
PACKAGE_OF_SAMPLERS = types.ModuleType("package_of_samplers")
PACKAGE_OF_SAMPLERS.settings = types.ModuleType("package_of_samplers.settings")
sys.modules.update({one.__name__: one for one in (PACKAGE_OF_SAMPLERS, PACKAGE_OF_SAMPLERS.settings)})
GET, MADE, INSTANCE = LIBRARY.get, LIBRARY.made(), LIBRARY.Base()


class Derived(LIBRARY.Base):
    pass


NOT_SHOWN = {
    "an attribute by its name": lambda sampler: getattr(SETTINGS, "le" + "vel"),
    "all of a module": lambda sampler: SETTINGS.__dict__["level"],
    "all of a module by a function": lambda sampler: vars(SETTINGS)["level"],
    "a module by its name": lambda sampler: sys.modules["settings"].level,
    "an import by its name": lambda sampler: importlib.import_module("settings").level,
    "a global by its name": lambda sampler: globals()["SETTINGS"].level,
    "an array's file": lambda sampler: numpy.load("level.npy"),
    "a tensor's file": lambda sampler: torch.load("level.pt"),
    "a table's file": lambda sampler: numpy.loadtxt("level.csv"),
    "a size": lambda sampler: os.path.getsize("level"),
    "a folder": lambda sampler: os.listdir("."),
    "whether a file is there": lambda sampler: Path("level").exists(),
    "a text": lambda sampler: Path("level").read_text(),
    "torch's threads": lambda sampler: torch.get_num_threads(),
    "a seed": lambda sampler: torch.initial_seed(),
    "a library's global": lambda sampler: LIBRARY.level,
    "a library's function": lambda sampler: GET(),
    "a library's closure": lambda sampler: MADE(),
    "a library's object": lambda sampler: INSTANCE.level,
    "a library's class": lambda sampler: Derived.level,
}


@pytest.mark.parametrize("kind", NOT_SHOWN)
def test_a_sampler_that_reads_what_does_not_show_is_left_alone(kind):
    sampler = Held(0)
    sampler.between = NOT_SHOWN[kind]
    loader = data.DataLoader(ITEMS, batch_size=3, sampler=sampler)
    assert order.of(loader).held() is None


def test_what_a_sampler_imports_of_its_package_is_watched():
    found = {"__name__": "package_of_samplers.samplers", "__package__": "package_of_samplers", "Sampler": data.Sampler}
    exec(
        """
class Leveled(Sampler):
    def __iter__(self):
        from . import settings
        for index in range(20):
            yield (index + settings.level) % 20
""",
        found,
    )
    settings = PACKAGE_OF_SAMPLERS.settings
    settings.level = 0
    loader = data.DataLoader(ITEMS, batch_size=3, sampler=found["Leveled"]())
    watched, iterator = order.of(loader), Iterator(loader)
    draw(iterator)
    draw(iterator)
    assert not watched.draws_late
    settings.level = 1
    draw(iterator)
    assert watched.draws_late


class Seeded(data.DistributedSampler):
    """By the epoch, of shares of numbers that a library and a file gave when it was made."""

    def __init__(self):
        super().__init__(ITEMS, num_replicas=2, rank=0)
        with open(__file__) as file:
            self.shares = LIBRARY.get() + 0 * len(file.name)

    def __iter__(self):
        drawn = torch.randperm(20, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        yield from itertools.islice(sorted(drawn, key=lambda one: one % 3), self.rank, None, self.num_replicas)


class OfAllKinds(data.Sampler):
    def __init__(self):
        self.generators = numpy.random.default_rng(3), random.Random(3), torch.Generator()
        self.epoch, self.rounds = 0, collections.defaultdict(int)

    def __iter__(self):
        drawn = numpy.random.default_rng(self.epoch).permutation(math.ceil(20 * 1.0))
        if torch.distributed.is_available() and os.environ.get("RANK"):
            drawn = drawn[:: int(os.environ["RANK"])]
        yield from (int(one) for one in itertools.chain(drawn, torch.multinomial(torch.ones(3), 2).tolist()))


@pytest.mark.parametrize("kind", [Own, Seeded, OfAllKinds, lambda: Held(0)])
def test_a_usual_sampler_is_watched_and_not_left_alone(kind):
    loader = data.DataLoader(ITEMS, batch_size=3, sampler=kind())
    found, iterator = order.of(loader), Iterator(loader)
    with pytest.raises(StopIteration):
        while True:
            draw(iterator)
    assert (found.draws_late, found.was_watched) == (False, True)


class OfItsData(data.Sampler):
    """Goes by an attribute of a data set that holds more than can be compared."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        yield from range(self.dataset.samples)


class Queued(data.Dataset):
    def __init__(self):
        self.samples, self.log = 4, queue.Queue()

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return index


def test_of_a_data_set_with_a_cache_what_a_sampler_names_is_looked_at_and_no_more():
    """As of one without: the iterator takes a stand-in for it, which is gone with the epoch."""
    from stallscope.data.stand_in import StandIn, put_in

    dataset = Queued()
    loader = data.DataLoader(dataset, sampler=OfItsData(dataset), batch_size=2)
    without = order.Order(loader)
    with put_in(loader, {"dataset": StandIn(dataset)}):
        watched = order.Order(loader)
    before = watched.held()
    assert before is not None and before == watched.held() and (before is None) == (without.held() is None)
    dataset.samples += 1
    assert watched.held() != before
