"""A change of the data set by its script shows, before a worker is added that would have another one than the others."""

import collections
import contextvars
import decimal
import functools
import os
import random
import sys
import threading
import types

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
numpy = pytest.importorskip("numpy")

from stallscope._hooks import headroom, kernel_text, outline  # noqa: E402

LEVEL, OPTIONS = 0, {"level": 0}
# As a module of the script's that it keeps settings in.
SETTINGS = types.ModuleType("settings_of_the_script")
SETTINGS.level = 0
SETTINGS.inner = types.ModuleType("settings_of_the_script.inner")
SETTINGS.inner.level = 0
# As one that is imported where it is used.
sys.modules["settings_within_of_the_script"] = WITHIN = types.ModuleType("settings_within_of_the_script")
WITHIN.level = 0
THREADS = threading.local()
THREADS.level = 0
# As one that makes its attributes, and a package that functions are in.
sys.modules["making_of_the_script"] = MAKING = types.ModuleType("making_of_the_script")
exec(
    "made = {'level': 0}\ndef __getattr__(name):\n    if name not in made:\n        raise AttributeError(name)\n    return made[name]",
    vars(MAKING),
)
for name in ("package_of_the_script", "package_of_the_script.inner", "package_of_the_script.settings"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].level = 0
NAME = contextvars.ContextVar("level", default=0)


def levelled(index):
    return index + LEVEL + SETTINGS.level


def deep(samples):
    return samples[SETTINGS.inner.level :]


def within(samples):
    import settings_within_of_the_script

    return samples[settings_within_of_the_script.level :]


def in_package(text):
    """A function of a module in a package of the script's."""
    found = {"__name__": "package_of_the_script.inner.reading", "__package__": "package_of_the_script.inner"}
    exec(f"def reading(samples):\n    {text}", found)
    return found["reading"]


def making(samples):
    import making_of_the_script

    return samples[making_of_the_script.level :]


def by_text(samples):
    return samples[vars(sys.modules["settings_within_of_the_script"])["level"] :]


def by_globals(samples):
    return samples[globals()["LEVEL"] :]


def of_context(samples):
    return samples[NAME.get() :]


def scaled(samples):
    return samples[scaled.level :]


def of_thread(samples):
    return samples[THREADS.level :]


scaled.level = 0


class Slotted:
    __slots__ = ("level",)

    def __init__(self, level):
        self.level = level


class Standing:
    """Stands for something that is opened when it is first asked for anything, as proxies do."""

    def __init__(self, opened):
        self.opened = opened

    @property
    def __class__(self):
        self.opened.append("by its class")
        return list


class Delegating:
    """The same, for what it has not itself."""

    __slots__ = ("opened",)

    def __init__(self, opened):
        self.opened = opened

    def __getattr__(self, name):
        self.opened.append(name)
        return getattr([], name)


class Dressed(Standing):
    __class__ = type("of its own", (), {})

    @property
    def __dict__(self):
        self.opened.append("by what it holds")
        return {}


class Numbers(numpy.ndarray):
    """Which would notice what is asked of it."""

    def tobytes(self, *args):
        raise RuntimeError("nobody has to take its numbers away")

    def ravel(self, *args):
        raise RuntimeError("nobody has to make another one of it")


class Meta(type):
    mean = 0.5


class Configured(metaclass=Meta):
    pass


class Drawn(random.Random):
    level = 0


class Transform:
    mean = 0.5

    def __init__(self):
        self.size = 32


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.epoch, self.transform, self.options = 0, Transform(), {"flip": 0.5}
        self.names, self.labels = [f"{number}.jpg" for number in range(1000)], torch.zeros(1000)
        self.itself = self
        self.samples = [{"name": name, "box": [0, 0]} for name in self.names]
        self.annotated = [Slotted(0) for _ in range(100)]
        self.counts, self.recent = collections.Counter(), collections.deque([0], maxlen=1)
        self.mixed = numpy.array([{"level": 0}, None], dtype=object)
        self.weights, self.chance = numpy.zeros(100), random.Random(1)
        self.drawn, self.configured = Drawn(1), Configured
        self.begun, self.free = threading.Event(), threading.Semaphore(3)

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return levelled(index)


class Trainer:
    """Which collates by a method of its own, that has one of a thousand attributes to do with it."""

    def __init__(self):
        self.longest, self.steps, self.how_long = 10, 0, 10

    def collate(self, samples):
        return samples[: self._most()]

    def _most(self):
        return self.longest

    def nested(self, samples):
        return [self.nested(one) if isinstance(one, list) else self._at_level(one) for one in samples]

    def computed(self, samples):
        return samples[: getattr(self, "_".join(["how", "long"]))]

    def _at_level(self, sample):
        return sample[: self.longest] + levelled(0)


def seeded(seed, worker):
    return seed + worker


def set_level(level):
    global LEVEL
    LEVEL = level


CHANGES = {
    "a number": lambda images: setattr(images, "epoch", 1),
    "a transform's": lambda images: setattr(images.transform, "size", 64),
    "another transform": lambda images: setattr(images, "transform", Transform()),
    "an option": lambda images: images.options.update(flip=0.1),
    "a name more": lambda images: images.names.append("more.jpg"),
    "labels written to": lambda images: images.labels.fill_(1),
    "a new attribute": lambda images: setattr(images, "fold", 3),
    "another name in the list": lambda images: images.names.__setitem__(500, "other.jpg"),
    "numpy's numbers": lambda images: images.weights.__setitem__(50, 1),
    "its generator": lambda images: images.chance.random(),
    "a label in a list of dicts": lambda images: images.samples[900]["box"].__setitem__(0, 1),
    "a slot of an object in a list": lambda images: setattr(images.annotated[90], "level", 1),
    "a counter": lambda images: images.counts.update("a"),
    "a deque": lambda images: images.recent.append(1),
    "an object in numpy's array": lambda images: images.mixed[0].update(level=1),
    "an attribute of a module": lambda images: setattr(SETTINGS, "level", SETTINGS.level + 1),
    "an attribute of a class": lambda images: setattr(Transform, "mean", Transform.mean + 1),
    "a global of a function that is called": lambda images: set_level(LEVEL + 1),
    "an attribute of a class's class": lambda images: setattr(Meta, "mean", Meta.mean + 1),
    "an attribute of a generator": lambda images: setattr(images.drawn, "level", 1),
    "an event": lambda images: images.begun.set(),
    "a semaphore": lambda images: images.free.acquire(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_script_changes_shows(change):
    images = Images()
    around = torch.utils.data.Subset(images, range(10))
    before = outline.of(around)
    assert outline.of(around) == before
    CHANGES[change](images)
    assert outline.of(around) != before


def test_a_column_that_is_set_anew_shows():
    frame = pytest.importorskip("pandas").DataFrame({"level": range(20), "name": ["a"] * 20})
    before = outline.of(frame)
    assert outline.of(frame) == before
    frame["level"] = 1
    assert outline.of(frame) != before


@pytest.mark.parametrize("kind", ["f4", object])
def test_an_array_of_the_scripts_own_class_does_not_notice(kind):
    numbers = numpy.zeros(3, dtype=kind).view(Numbers)
    before = outline.of(numbers)
    assert outline.of(numbers) == before
    numbers[1] = 1
    assert outline.of(numbers) != before


def raise_level(module):
    module.level += 1


def worker_functions():
    """What a loader may collate with, and something that changes what it does."""
    options, trainer = dict(OPTIONS), Trainer()
    packages = [sys.modules[name] for name in ("package_of_the_script", "package_of_the_script.settings")]

    def librarys(samples):
        return samples[options["level"] :]

    librarys.__module__ = "numpy.made"
    return {
        "a closure of a library's": (librarys, lambda: options.update(level=1)),
        "a module in a module": (deep, lambda: setattr(SETTINGS.inner, "level", SETTINGS.inner.level + 1)),
        "a module that it imports": (within, lambda: setattr(WITHIN, "level", WITHIN.level + 1)),
        "a module next to its package": (in_package("from .. import settings; return samples[settings.level :]"), lambda: raise_level(packages[1])),
        "an attribute of one": (in_package("from ..settings import level; return samples[level:]"), lambda: raise_level(packages[1])),
        "an attribute of a package": (in_package("from .. import level; return samples[level:]"), lambda: raise_level(packages[0])),
        "what a module makes": (making, lambda: MAKING.made.update(level=MAKING.level + 1)),
        "a module by its name": (by_text, lambda: raise_level(WITHIN)),
        "a global by its name": (by_globals, lambda: set_level(LEVEL + 1)),
        "what a context has": (of_context, lambda: NAME.set(NAME.get() + 1)),
        "an attribute of its own": (scaled, lambda: setattr(scaled, "level", scaled.level + 1)),
        "what each thread has": (of_thread, lambda: setattr(THREADS, "level", THREADS.level + 1)),
        "an attribute whose name is computed": (trainer.computed, lambda: setattr(trainer, "how_long", 20)),
        "a closure": (lambda samples: samples[options["level"] :], lambda: options.update(level=1)),
        "a default": (lambda samples, given=options: samples[given["level"] :], lambda: options.update(level=1)),
        "a partial": (functools.partial(seeded, options), lambda: options.update(level=1)),
        "a method": (trainer.collate, lambda: setattr(trainer, "longest", 20)),
        "a method that calls itself": (trainer.nested, lambda: setattr(trainer, "longest", 20)),
        "a global of a method that it calls": (trainer.nested, lambda: set_level(LEVEL + 1)),
        "a global": (levelled, lambda: set_level(LEVEL + 1)),
        "an object": (Transform(), lambda: setattr(Transform, "mean", Transform.mean + 1)),
    }


@pytest.mark.parametrize("name", worker_functions())
def test_so_does_what_changes_of_the_functions_that_workers_have(name):
    function, change = worker_functions()[name]
    before = outline.of_workers(None, function, None), outline.of_workers(None, None, function)
    assert (outline.of_workers(None, function, None), outline.of_workers(None, None, function)) == before
    change()
    after = outline.of_workers(None, function, None), outline.of_workers(None, None, function)
    assert after[0] != before[0] and after[1] != before[1]


def views():
    """What shows what is elsewhere, and a change of that."""
    table = {"level": 0}
    return {
        "a proxy": (types.MappingProxyType(table), lambda: table.update(level=1)),
        "a dict's values": (table.values(), lambda: table.update(level=1)),
        "a dict's items": (table.items(), lambda: table.update(level=1)),
        "a method of a dict": (table.get, lambda: table.update(level=1)),
        "a method in C": (table.__getitem__, lambda: table.update(level=1)),
    }


@pytest.mark.parametrize("name", views())
def test_so_does_what_is_behind_a_view(name):
    view, change = views()[name]
    before = outline.of([view])
    assert outline.of([view]) == before
    change()
    assert outline.of([view]) != before


def test_the_processs_own_generators_are_no_part_of_a_data_set():
    functions = [random.random, numpy.random.rand]
    before = outline.of(functions, torch.default_generator)
    assert functions[0]() != functions[0]() and numpy.random.rand() and torch.rand(1) is not None
    assert outline.of(functions, torch.default_generator) == before


@pytest.mark.parametrize("kind", [Standing, Delegating, Dressed])
def test_what_opens_something_when_it_is_first_asked_is_not_asked(kind):
    opened = []
    standing = kind(opened)
    outline.of_workers(torch.utils.data.Subset([standing], [0]), None, None)
    assert outline.of_whole(standing) is None or kind is Delegating
    assert outline.shared(standing) == [] and outline.taken(standing) == []
    headroom.weigh([standing, {"within": standing}])
    assert opened == []


def test_what_a_method_does_not_name_of_its_object_is_no_change():
    trainer = Trainer()
    collate = trainer.collate
    before = outline.of(collate)
    trainer.steps += 1
    trainer.model = torch.nn.Linear(2, 2)
    assert outline.of(collate) == before


@pytest.mark.parametrize("around", ["folder", "environment", "gradients", "type", "autocast", "decimals"])
def test_so_does_what_a_forked_worker_has_of_the_process(around, tmp_path, monkeypatch):
    before = outline.of_workers(None, None, None)
    if around == "folder":
        monkeypatch.chdir(tmp_path)
        assert os.getcwd() == str(tmp_path)
    if around == "environment":
        monkeypatch.setenv("STALLSCOPE_TEST_LOOKS", "1")
    if around == "type":
        torch.set_default_dtype(torch.float64)
    precision = decimal.getcontext().prec
    decimal.getcontext().prec += around == "decimals"
    try:
        with torch.set_grad_enabled(around != "gradients"), torch.autocast("cpu", enabled=around == "autocast"):
            assert outline.of_workers(None, None, None) != before
    finally:
        torch.set_default_dtype(torch.float32)
        decimal.getcontext().prec = precision
    monkeypatch.undo()
    assert outline.of_workers(None, None, None) == before


def says(monkeypatch, texts):
    """The kernel, of these paths."""
    of = kernel_text.of
    monkeypatch.setattr(kernel_text, "of", lambda path: texts[path] if path in texts else of(path))


def test_memory_is_free_below_the_lower_limit_of_a_group(tmp_path, monkeypatch):
    """Beyond `memory.high` the kernel holds the group's processes up."""
    monkeypatch.setattr(headroom, "_CGROUPS", str(tmp_path))
    says(monkeypatch, {"/proc/self/cgroup": "0::/\n"})
    for name, text in {"max": "max", "high": 9 << 20, "current": 8 << 20, "stat": f"inactive_file {2 << 20}\nactive_file {1 << 20}"}.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert headroom.memory_free() == 4 << 20
    (tmp_path / "memory.max").write_text(f"{8 << 20}\n")
    assert headroom.memory_free() == 3 << 20
    # What a script asks for itself may be more than that.
    assert list(headroom.group_limits()) == [8 << 20]


def test_processes_are_free_below_the_limits_of_the_group_and_of_its_user(tmp_path, monkeypatch):
    monkeypatch.setattr(headroom, "_CGROUPS", str(tmp_path))
    texts = {"/proc/self/cgroup": "9:memory:/job\n8:pids:/job\n0::/\n", "/proc/loadavg": "0.1 0.1 0.1 1/700 99"}
    says(monkeypatch, texts)
    for folder, most, used in (("pids/job", 40, 30), ("pids", "max", 300), (".", 320, 305)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "pids.max").write_text(f"{most}\n")
        (tmp_path / folder / "pids.current").write_text(f"{used}\n")
    monkeypatch.setattr(headroom, "_limit", lambda name: 1000 if name == "Max processes" else 1 << 20)
    monkeypatch.setattr(headroom, "_is_unlimited", lambda: True)
    assert [free for free, _ in headroom.tasks_free()] == [10, 15]
    monkeypatch.setattr(headroom, "_is_unlimited", lambda: False)
    *_, (free, why) = headroom.tasks_free()
    assert 0 < free < 1000 and why == "ulimit -u"
    most, why = headroom.for_workers(os.getpid())
    assert most <= 10 // 4 and "are free (pids.max of the job's cgroup)" in why
