"""Whatever state it is that `fetch` and `decode` see: another one is another data set, in two jobs and in two epochs of one."""

import _io
import argparse
import builtins
import functools
import gc
import io
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path

import pytest
from collector import PACKAGE

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
np = pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")

import state_sets  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import stallscope  # noqa: E402
from stallscope.data.cache import open_hook  # noqa: E402
from stallscope.data.cache.keys import fingerprint  # noqa: E402

SAMPLES = 60
FIRST = np.arange(SAMPLES)
# The trial of a data set looks at its first, its middle and its last sample.
OTHER = np.where(np.isin(FIRST, (0, SAMPLES // 2, SAMPLES - 1)) | (FIRST % 3 > 0), FIRST, 7)
ARGS = argparse.Namespace()
NESTED = types.SimpleNamespace()
TABLE = None
settings = sys.modules["settings_of_test"] = types.ModuleType("settings_of_test")


def packed(value):
    return int(value).to_bytes(4, "little") * 50


class Base(Dataset):
    def __len__(self):
        return SAMPLES

    def decode(self, data):
        return int.from_bytes(data[:4], "little")

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


class Held(Base):
    """Of what is held, by a function that gives a label of it."""

    def __init__(self, held, label=lambda held, index: held[index]):
        self.held = held
        self.label = label

    def fetch(self, index):
        return packed(self.label(self.held, index))


def reading(label, kind=Base, **members):
    """A data set of a class of its own that holds nothing; equal names, as in two jobs."""
    return type("Reading", (kind,), {"fetch": lambda self, index: packed(label(self, index)), **members})()


def class_attribute(labels):
    return reading(lambda self, index: self.labels[index], labels=labels.tolist())


def base_class_attribute(labels):
    return reading(lambda self, index: self.labels[index], type("Of", (Base,), {"labels": labels.tolist()}))


def by_class_method(labels):
    table = classmethod(lambda cls: cls.labels)
    return reading(lambda self, index: self.table()[index], table=table, labels=labels.tolist())


def by_name_of_attribute(labels):
    return reading(lambda self, index: getattr(self, "la" + "bels")[index], labels=labels.tolist())


def by_descriptor(labels):
    class Given:
        def __init__(self, labels):
            self.labels = labels

        def __get__(self, of, kind):
            return self.labels

    return reading(lambda self, index: self.given[index], given=Given(labels))


class Slotted(Base):
    __slots__ = ("labels",)

    def fetch(self, index):
        return packed(self.labels[index])


def slots(labels):
    made = Slotted()
    made.labels = labels
    return made


def namespace(labels):
    ARGS.labels = labels
    return reading(lambda self, index: ARGS.labels[index])


def nested_namespace(labels):
    NESTED.inner = types.SimpleNamespace(labels=labels)
    return reading(lambda self, index: [label for label in NESTED.inner.labels][index])


def module_attribute(labels):
    settings.labels = labels
    return reading(lambda self, index: settings.labels[index])


def module_in_function(labels):
    settings.labels = labels

    def label(self, index):
        import settings_of_test

        return settings_of_test.labels[index]

    return reading(label)


def from_module_in_function(labels):
    settings.labels = labels

    def label(self, index):
        from settings_of_test import labels as found

        return found[index]

    return reading(label)


def module_by_name(labels):
    settings.labels = labels
    return reading(lambda self, index: sys.modules["settings_of_test"].labels[index])


class Shelf:
    labels = None


def global_object(labels):
    SHELF.labels = labels
    return reading(lambda self, index: SHELF.labels[index])


SHELF = Shelf()


def global_class(labels):
    Shelf.labels = labels
    return reading(lambda self, index: Shelf.labels[index])


def class_that_is_held(labels):
    Shelf.labels = labels
    return Held(Shelf, lambda held, index: held.labels[index])


def class_of_what_is_held(labels):
    kind = type("Of", (), {"labels": labels, "at": lambda self, index: self.labels[index]})
    return Held(kind(), lambda held, index: held.at(index))


def code_of_what_is_held(labels):
    if labels is FIRST:
        return Held(type("Of", (), {"at": lambda self, index: FIRST[index]})(), lambda held, index: held.at(index))
    return Held(type("Of", (), {"at": lambda self, index: OTHER[index]})(), lambda held, index: held.at(index))


def class_of_a_class(labels):
    kind = type("Kind", (type,), {"labels": labels})
    made = kind("Reading", (Base,), {"fetch": lambda self, index: packed(type(self).labels[index])})
    return made()


class Silent:
    """Says nothing of itself when it is pickled."""

    def __init__(self, labels):
        self.labels = labels

    def __getstate__(self):
        return {}

    def __getitem__(self, index):
        return self.labels[index]


class Reduced(Silent):
    def __reduce__(self):
        return Reduced, (None,)


class Dictionary(dict):
    def __getitem__(self, index):
        return self.labels[index]


def dictionary(labels):
    made = Dictionary()
    made.labels = labels
    return Held(made)


def mapped(labels, tmp_path, mode="r"):
    path = tmp_path / "labels"
    if not path.exists():
        np.concatenate([FIRST, OTHER]).tofile(path)
    return np.memmap(path, dtype=FIRST.dtype, mode=mode)


def part_of_a_map(labels, tmp_path):
    of = mapped(labels, tmp_path)
    return Held(of[:SAMPLES] if labels is FIRST else of[SAMPLES:])


def plain_view_of_a_map(labels, tmp_path):
    of = np.asarray(mapped(labels, tmp_path))
    return Held(of[:SAMPLES] if labels is FIRST else of[SAMPLES:])


def map_changed_in_memory(labels, tmp_path):
    of = mapped(labels, tmp_path, "c")
    of[:SAMPLES] = labels
    return Held(of)


class Array(np.ndarray):
    pass


def attribute_of_an_array(labels):
    made = np.zeros(3).view(Array)
    made.labels = labels
    return Held(made, lambda held, index: held.labels[index])


def attribute_of_a_tensor(labels):
    made = torch.zeros(3)
    made.labels = labels
    return Held(made, lambda held, index: held.labels[index])


def gradient(labels):
    made = torch.zeros(SAMPLES, requires_grad=True)
    made.grad = torch.from_numpy(labels).float()
    return Held(made, lambda held, index: held.grad[index])


def environment(labels):
    os.environ["LABELS_OF_TEST"] = "first" if labels is FIRST else "other"
    return reading(lambda self, index: (FIRST if os.environ["LABELS_OF_TEST"] == "first" else OTHER)[index])


def evaluated(labels):
    global TABLE
    TABLE = labels
    return reading(lambda self, index: eval("TABLE")[index])


def attribute_of_a_function(labels):
    def label(self, index):
        return label.labels[index]

    label.labels = labels
    return reading(label)


def decorated(labels):
    return reading(torch.no_grad()(lambda self, index: labels[index]))


def remembered(labels):
    global TABLE
    TABLE = labels
    table = functools.lru_cache(maxsize=None)(lambda: TABLE)
    return reading(lambda self, index: table()[index])


def default(labels):
    return reading(lambda self, index, held=labels: held[index])


def partial(labels):
    made = Held(None)
    made.fetch = functools.partial(lambda held, index: packed(held[index]), labels)
    return made


def bound_method(labels):
    return Held(Silent(labels).__getitem__, lambda held, index: held(index))


def beside_a_lock(labels):
    made = Held(labels)
    made.lock = threading.Lock()
    return made


CASES = [
    class_attribute, base_class_attribute, by_class_method, by_name_of_attribute, by_descriptor, slots, namespace, nested_namespace,
    module_attribute, module_in_function, from_module_in_function, module_by_name, global_object, global_class, class_that_is_held,
    class_of_what_is_held, code_of_what_is_held, class_of_a_class, dictionary, part_of_a_map, plain_view_of_a_map, map_changed_in_memory,
    attribute_of_an_array, attribute_of_a_tensor, gradient, environment, evaluated, attribute_of_a_function, decorated, remembered,
    default, partial, bound_method, beside_a_lock,
]  # fmt: skip
CASES = {case.__name__: case for case in CASES}
CASES.update(silent=lambda labels: Held(Silent(labels)), reduced=lambda labels: Held(Reduced(labels)))


@pytest.fixture(autouse=True)
def pool(tmp_path, monkeypatch):
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path))
    # Put back when the test ends.
    monkeypatch.setenv("LABELS_OF_TEST", "")
    monkeypatch.setattr(Shelf, "labels", None)


def samples(loader):
    return [value for batch in loader for value in batch.tolist()]


@pytest.mark.parametrize("case", CASES)
def test_another_state_that_fetch_sees_is_another_data_set(case, tmp_path):
    make = CASES[case]
    more = (tmp_path,) if "map" in case else ()
    kept = []
    for labels in (FIRST, OTHER):
        dataset = make(labels, *more)
        wanted = samples(DataLoader(dataset, batch_size=20))
        assert wanted == labels.tolist()
        kept.append(stallscope.DataLoader(dataset, batch_size=20, cache="1MiB"))
        assert samples(kept[-1]) == wanted
        assert kept[-1].cache_figures()["misses"] == SAMPLES


class Epochs(Base):
    shared = 0

    def __init__(self):
        self.epoch = 0

    def fetch(self, index):
        return packed(1000 * index + self.epoch + self.shared)


def with_a_lock():
    made = Epochs()
    made.lock = threading.Lock()
    return made


def with_an_open_file():
    made = Epochs()
    made.file = open(os.devnull)
    return made


def with_a_generator():
    made = Epochs()
    made.pending = (one for one in range(3))
    return made


def on_itself(dataset, epoch):
    dataset.epoch = epoch


def on_its_class(dataset, epoch):
    Epochs.shared = epoch


@pytest.mark.parametrize(
    "make,change,workers",
    [
        (Epochs, on_itself, 0), (Epochs, on_its_class, 0), (Epochs, on_itself, 1), (with_a_lock, on_itself, 0), (with_a_lock, on_its_class, 0),
        (with_a_lock, on_itself, 1), (with_an_open_file, on_itself, 0), (with_a_generator, on_itself, 0),
    ],
)  # fmt: skip
def test_what_changes_between_epochs_is_seen_however_short_they_are(make, change, workers, monkeypatch):
    monkeypatch.setattr(Epochs, "shared", 0)
    got = []
    for kind, more in ((DataLoader, {}), (stallscope.DataLoader, {"cache": "1MiB"})):
        dataset = make()
        loader = kind(dataset, batch_size=20, num_workers=workers, **more)
        got.append([])
        for epoch in (0, 1, 1):
            change(dataset, epoch)
            got[-1].append(samples(loader))
    assert got[0] == got[1]


def test_nothing_of_a_data_set_is_kept_when_it_is_gone():
    dataset, given = Epochs(), Shelf()
    # This one can be neither watched nor fingerprinted.
    dataset.pending = itertools.chain([given])
    assert fingerprint._known_by(dataset, fingerprint.state_of(dataset)) and fingerprint.state_of(dataset).why
    given = weakref.ref(given)
    del dataset
    gc.collect()
    assert given() is None


def test_what_has_no_fingerprint_stays_with_its_object():
    first, second = with_a_lock(), with_a_lock()
    keys = [fingerprint._known_by(one, fingerprint.state_of(one)) for one in (first, first, second)]
    assert keys[0] == keys[1] != keys[2]
    first.lock = threading.Lock()
    assert fingerprint._known_by(first, fingerprint.state_of(first)) != keys[0]


@pytest.fixture(scope="module")
def elsewhere():
    """What a process with another seed of hashes tells of the same data sets: made there, and sent there."""
    sent = pickle.dumps({name: made() for name, made in state_sets.SETS.items()})
    path = os.pathsep.join([str(PACKAGE), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, state_sets.__file__],
        input=sent,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_data_set_is_the_same_one_once_samples_were_made(monkeypatch):
    for module in (builtins, io):
        monkeypatch.setattr(module, "open", _io.open)
    before = state_sets.digest_of(state_sets.Images())
    open_hook.install()
    assert builtins.open is not _io.open
    assert state_sets.digest_of(state_sets.Images()) == before


@pytest.mark.parametrize("name", state_sets.SETS)
def test_a_data_set_as_people_write_them_is_the_same_one_in_another_process(name, elsewhere):
    dataset = state_sets.SETS[name]()
    state = fingerprint.state_of(dataset)
    assert state.why is None
    assert fingerprint.glance_at(dataset) == fingerprint.glance_at(dataset)
    assert elsewhere[name] == [state_sets.digest_of(dataset)] * 2


def test_a_forked_process_tells_the_same():
    reading_end, writing_end = os.pipe()
    dataset = state_sets.SETS["mapped"]()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing_end, state_sets.digest_of(dataset).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading_end, 1000).decode() == state_sets.digest_of(dataset)
    os.close(reading_end)
    os.close(writing_end)


@pytest.mark.parametrize(
    "make",
    [lambda: random.Random(3), lambda: np.random.default_rng(3), torch.Generator],
    ids=["python", "numpy", "torch"],
)
def test_a_generator_that_decode_draws_from_is_the_same_state_in_the_next_epoch(make):
    class Noisy(Held):
        def decode(self, data):
            of_torch = isinstance(self.noise, torch.Generator)
            drawn = torch.rand(1, generator=self.noise).item() if of_torch else self.noise.random()
            return super().decode(data) + drawn / 2

    dataset = Noisy(FIRST)
    dataset.noise = make()
    loader = stallscope.DataLoader(dataset, batch_size=20, cache="1MiB")
    epochs = [samples(loader) for _ in range(3)]
    assert [[int(value) for value in epoch] for epoch in epochs] == [FIRST.tolist()] * 3
    assert loader.cache_figures()["hits"] == 2 * SAMPLES
