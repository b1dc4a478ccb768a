"""A cache gives what its data set would give, whatever of the data set is another or has changed."""

import collections
import functools
import itertools
import threading
import typing

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
numpy = pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")

import stallscope  # noqa: E402
from stallscope.data.cache.keys import digests, fingerprint  # noqa: E402

SAMPLES = 200
FACTOR = 3


class Labelled(torch.utils.data.Dataset):
    def __init__(self, labels, **more):
        self.labels = labels
        self.epoch = 0
        self.__dict__.update(more)

    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        return int(self.labels[index] + self.epoch).to_bytes(4, "little") * 50

    def decode(self, data):
        return int.from_bytes(data[:4], "little")

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


@pytest.fixture(autouse=True)
def pool(tmp_path, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path))


def loader_of(dataset, **more):
    return stallscope.DataLoader(dataset, batch_size=20, cache="16MiB", **more)


def samples(loader):
    return [one for batch in loader for one in batch.tolist()]


def hits(loader):
    figures = loader.cache_figures()
    return figures["hits"]


def labels():
    made = numpy.arange(SAMPLES)
    other = made.copy()
    other[5::7] = 9
    return made, other


@pytest.mark.parametrize("kind", ["array", "list", "tensor", "dict", "closure", "object"])
def test_another_data_set_never_gets_the_first_ones_samples(kind):
    class Holder:
        def __init__(self, values):
            self.values = values

        def __getitem__(self, index):
            return self.values[index]

    def looked_up(values):
        class Looked:
            get = staticmethod(lambda index: values[index])

        return functools.partial(lambda index: values[index])

    def held(values):
        made = {
            "array": lambda: values,
            "list": values.tolist,
            "tensor": lambda: torch.from_numpy(values),
            "dict": lambda: dict(enumerate(values.tolist())),
            "closure": lambda: looked_up(values.tolist()),
            "object": lambda: Holder(values),
        }
        return made[kind]()

    class Called(Labelled):
        def fetch(self, index):
            return int(self.labels(index)).to_bytes(4, "little") * 50

    first, other = labels()
    of = Called if kind == "closure" else Labelled
    kept = loader_of(of(held(first)))
    assert samples(kept) == first.tolist() and samples(kept) == first.tolist() and hits(kept) >= SAMPLES
    assert samples(loader_of(of(held(other)))) == other.tolist()


def test_the_same_data_set_again_finds_what_was_kept():
    first, _ = labels()
    kept = loader_of(Labelled(first))
    samples(kept)
    again = loader_of(Labelled(first.copy()))
    assert samples(again) == first.tolist() and hits(again) == SAMPLES


def test_what_has_no_fingerprint_is_shared_by_its_key_alone():
    first, other = labels()
    kept = loader_of(Labelled(first, lock=threading.Lock()), cache_key="v1")
    samples(kept)
    again = loader_of(Labelled(first, lock=threading.Lock()), cache_key="v1")
    assert samples(again) == first.tolist() and hits(again) == SAMPLES
    assert samples(loader_of(Labelled(other, lock=threading.Lock()), cache_key="v2")) == other.tolist()
    with pytest.raises(TypeError, match="cache_key: a list is neither"):
        loader_of(Labelled(first), cache_key=["v1"])


def test_what_small_attributes_hold_is_looked_at_each_epoch_and_bulky_contents_where_time_allows(monkeypatch):
    monkeypatch.setattr("stallscope.data.cache.store._LOOK_COSTS", float("inf"))
    values = list(range(100_000))
    dataset = Labelled(values)
    loader = loader_of(dataset)
    for epoch in (0, 1, 1, 2):
        dataset.epoch = epoch
        assert samples(loader) == [value + epoch for value in range(SAMPLES)]
    values[7] = 9
    assert samples(loader)[7] == 7 + 2, "one of so many changed in place is not seen for a while"
    dataset.labels = [9] * len(values)
    assert samples(loader) == [9 + 2] * SAMPLES, "another list is"
    values = dataset.labels = numpy.zeros(100_000, dtype=int)
    assert samples(loader) == [2] * SAMPLES
    values[:] = 1
    assert samples(loader) == [3] * SAMPLES, "and so is an array of which all changed"
    tensor = dataset.labels = torch.zeros(100_000, dtype=int)
    assert samples(loader) == [2] * SAMPLES
    tensor[7] = 9
    assert samples(loader)[7] == 9 + 2, "of a tensor its version tells"
    monkeypatch.setattr("stallscope.data.cache.store._LOOK_COSTS", 0)
    values = dataset.labels = list(range(100_000))
    assert samples(loader)[7] == 7 + 2
    values[7] = 9
    assert samples(loader)[7] == 9 + 2


@pytest.mark.parametrize("look_ns,looks", [([9e6, 9_900], True), ([9e6, 11_000], False), ([], False)])
def test_files_are_looked_at_where_that_costs_less_than_a_tenth_of_a_sample(monkeypatch, look_ns, looks):
    class Cut:
        sample_ns = 100_000

    Cut.look_ns = look_ns
    monkeypatch.setattr(fingerprint.stored_form, "agreed", lambda choice, key: choice)
    assert fingerprint.looks_at_files(Cut, b"key") is looks


def test_what_nobody_can_see_is_forgotten_on_request():
    shelf = {"labels": labels()[0]}

    class Behind(Labelled):
        def fetch(self, index):
            return int(self.shelf()["labels"][index]).to_bytes(4, "little") * 50

    # Declared to be always the same.
    loader = loader_of(Behind(None, shelf=lambda: shelf), cache_key="shelf")
    first, other = labels()
    assert samples(loader) == first.tolist()
    shelf["labels"] = other
    assert samples(loader) == first.tolist(), "nobody could know"
    loader.invalidate()
    assert samples(loader) == other.tolist()


class Reads:
    def __init__(self, path):
        self.file = open(path, "rb")


def scaled(value):
    return FACTOR * value


def of(value, names=()):
    state = digests.of(value, names)
    assert state.why is None, state.why
    return state.digest


def test_states_are_equal_where_their_content_is(monkeypatch):
    def state():
        return {
            "set": {"a", "b", "c"},
            "names": ["x" * 2, "xx"],
            "memory": torch.arange(6.0).reshape(2, 3),
            "strided": numpy.arange(12).reshape(3, 4)[:, ::2],
            "objects": numpy.array([1, "a"], dtype=object),
            "function": scaled,
            "size": torch.Size([3]),
        }

    assert of(state()) == of(state())
    monkeypatch.setattr(f"{__name__}.FACTOR", 4)
    assert len({of(state()), of({**state(), "names": ["xx", "xy"]}), of({**state(), "size": 1})}) == 3
    same = of(state())
    monkeypatch.setattr(f"{__name__}.FACTOR", 3)
    assert of(state()) != same, "a number that a function uses is outcome"


def test_code_of_a_data_set_is_part_of_what_it_is():
    class Doubled(Labelled):
        def decode(self, data):
            return 2 * int.from_bytes(data[:4], "little")

    class Again(Labelled):
        def decode(self, data):
            return 3 * int.from_bytes(data[:4], "little")

    first, _ = labels()
    parts = ("fetch", "decode")
    assert of(Labelled(first), parts) == of(Labelled(first), parts)
    assert len({of(kind(first), parts) for kind in (Labelled, Doubled, Again)}) == 3


def test_what_has_no_content_has_no_fingerprint(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"x")
    deep = []
    for _ in range(100):
        deep = [deep, threading]
    for held in (threading.Lock(), Reads(tmp_path / "file"), (one for one in ()), deep, torch.empty(2, device="meta")):
        assert digests.of({"held": held}).why
    monkeypatch.setattr(digests, "_MOST_BYTES", 1000)
    for held in (numpy.zeros(1000), "x" * 2000, list(range(2000)), [Reads] * 100):
        assert "too much" in digests.of([held]).why


def test_of_what_has_no_fingerprint_the_rest_counts():
    def state(lock, **more):
        return digests.of({"lock": lock, **more})

    lock, other = threading.Lock(), threading.Lock()
    assert state(lock, size=1) == state(lock, size=1)
    assert state(lock, size=1) != state(lock, size=2) and state(lock, size=1) != state(other, size=1)
    held = state(other, size=1)
    del other
    assert held != held, "another lock may have its place in memory"


def test_what_leads_to_itself_has_a_fingerprint():
    circle, other = [1], [2]
    circle.append(circle)
    other.append(other)
    assert of(circle) == of(circle) != of(other)
    first, second = Holder(), Holder()
    first.near, second.near = {first, second}, {first, second}
    assert digests.of(first).why == "it holds a set in a set"


class Holder:
    pass


def test_a_job_is_one_for_its_ranks_and_another_for_each_run(monkeypatch):
    alone = fingerprint.job()
    assert alone == fingerprint.job()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert fingerprint.job() != alone


class Feed(collections.deque):
    """Every pass through it takes what it holds."""

    def __iter__(self):
        while len(self):
            yield self.popleft()


class Endless(collections.OrderedDict):
    def items(self):
        return (("a", number) for number in itertools.count())


class Endlessly(collections.defaultdict):
    def items(self):
        return (("a", number) for number in itertools.count())


class Watched:
    def __init__(self, ran):
        object.__setattr__(self, "ran", ran)

    def __getattribute__(self, name):
        object.__getattribute__(self, "ran").append(name)
        return object.__getattribute__(self, name)

    @property
    def __class__(self):
        object.__getattribute__(self, "ran").append("__class__")
        return dict


@pytest.mark.parametrize("glance", [False, True])
def test_looking_at_a_data_set_runs_none_of_its_code(glance):
    ran = []

    class Noted:
        def __repr__(self):
            ran.append("repr")
            return "noted"

    holds = {"feed": Feed([1, 2]), "endless": Endless(a=1), "too": Endlessly(int, a=1), "watched": Watched(ran)}
    holds["typed"] = typing.Annotated[int, Noted()]

    class Set(torch.utils.data.Dataset):
        def __init__(self):
            self.holds = holds

        def __getitem__(self, index):
            return self.holds

    first = digests.of(Set(), ("__getitem__",), glance)
    assert ran == [] and len(holds["feed"]) == 2
    holds["feed"].append(3)
    assert digests.of(Set(), ("__getitem__",), glance) != first
