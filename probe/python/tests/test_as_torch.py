"""Loaders of ours, and torch's that a Checkpointer has, give what torch's give: of data sets that are not quite what a cache takes
them for, to threads, and as copies."""

import copy
import multiprocessing
import pickle
import random
import tempfile
import threading
import warnings

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path
from unwarned import unwarned

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")
numpy = pytest.importorskip("numpy", reason="SKIPPED: this Python has no numpy")

import stallscope  # noqa: E402
from stallscope import Checkpointer  # noqa: E402
from stallscope.data.resume.given import position  # noqa: E402

SAMPLES = 12


@pytest.fixture(autouse=True)
def own_pool(monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", folder)
        yield


class Parts(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        return bytes([index]) * 400

    def decode(self, data):
        return torch.tensor([float(data[0])])

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


class Seldom(Parts):
    """Augmented with a chance that none of the samples that are tried may meet."""

    # As those of a class above would not stand for its samples.
    fetch, decode = Parts.fetch, Parts.decode

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return -sample - 1 if random.random() < 0.3 else sample


class Batchwise(Parts):
    """Augmented a batch at a time."""

    def __getitems__(self, indices):
        return [self[index] + 100 for index in indices]


class Sorting(Parts):
    """Reads a batch in the order of its files."""

    def __getitems__(self, indices):
        return [self[index] for index in sorted(indices)]


class Once(Parts):
    """Makes no sample twice for a batch."""

    def __getitems__(self, indices):
        return [self[index] for index in dict.fromkeys(indices)]


class OneIsMore(Parts):
    """Its last sample is more than its parts."""

    fetch, decode = Parts.fetch, Parts.decode

    def __getitem__(self, index):
        return super().__getitem__(index) * (2 if index == SAMPLES - 1 else 1)


class Counting(Parts):
    """Adds more to each sample that it gives."""

    given = 0

    def decode(self, data):
        return super().decode(data) + self.given / 1000

    def __getitem__(self, index):
        self.given += 1
        return super().__getitem__(index)


class Shared(Parts):
    """The same, counted for all processes."""

    def __init__(self):
        self.given = multiprocessing.Value("q")

    def decode(self, data):
        return super().decode(data) + self.given.value / 1000

    def __getitem__(self, index):
        self.given.value += 1
        return super().__getitem__(index)


def seldom(random):
    return lambda sample: -sample - 1 if random.random() < 0.3 else sample


class Transformed(Parts):
    """Augmented with a chance that comes from a generator that a closure has."""

    fetch, decode = Parts.fetch, Parts.decode

    def __init__(self):
        self.transform = seldom(random.Random(5))

    def __getitem__(self, index):
        return self.transform(super().__getitem__(index))


def values(loader):
    return [value for batch in loader for value in batch.flatten().tolist()]


@pytest.mark.parametrize(
    "kind,why",
    [
        (Seldom, "draws other random numbers|is not its sample"), (Batchwise, "__getitems__"), (OneIsMore, "is not its sample 11"),
        (Counting, "making a sample changes what the data set holds"),
        (Transformed, "draws other random numbers|is not its sample"),
    ],
    ids=["a chance", "a batch", "one sample", "a count", "a closure's chance"],
)
def test_what_a_data_set_does_beside_its_parts_is_never_left_out(kind, why):
    for seed in range(4):
        torch.manual_seed(seed)
        with pytest.warns(RuntimeWarning, match=why):
            cached = values(stallscope.DataLoader(kind(), batch_size=4, cache="4MiB"))
        # Augmentation is keyed with ours, by the state that torch's generator has as an epoch begins, with or without a cache.
        torch.manual_seed(seed)
        assert cached == values(stallscope.DataLoader(kind(), batch_size=4))
        assert cached != values(torch.utils.data.DataLoader(Parts(), batch_size=4))


@pytest.mark.parametrize("kind", [Sorting, Once])
def test_batches_that_a_data_set_makes_otherwise_than_one_by_one_are_its_own(kind):
    def got(loader, **more):
        return values(loader(kind(), sampler=[7, 2, 2, 11, 0, 5, 5, 1], batch_size=4, **more))

    with pytest.warns(RuntimeWarning, match="__getitems__"):
        cached = got(stallscope.DataLoader, cache="4MiB")
    assert cached == got(torch.utils.data.DataLoader)


def test_a_count_of_all_processes_is_seen_too():
    with pytest.warns(RuntimeWarning, match="making a sample changes what the data set holds"):
        values(stallscope.DataLoader(Shared(), batch_size=4, cache="4MiB"))


class Recovers(Parts):
    """Gives another sample where one cannot be read or is broken."""

    def fetch(self, index):
        if index == 4:
            raise ValueError("it cannot be read")
        return super().fetch(index)

    def decode(self, data):
        if data[0] == 7:
            raise ValueError("it is broken")
        return super().decode(data)

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except ValueError:
            return self[index + 1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("subset", [False, True], ids=["all", "a subset"])
@pytest.mark.filterwarnings("ignore:.*could not be made from what the cache has of it:RuntimeWarning")
def test_a_data_set_may_recover_from_a_broken_sample(workers, subset):
    dataset = torch.utils.data.Subset(Recovers(), range(SAMPLES)) if subset else Recovers()
    loader = stallscope.DataLoader(dataset, batch_size=4, num_workers=workers, cache="4MiB")
    for _ in range(3):
        assert values(loader) == [0, 1, 2, 3, 5, 5, 6, 8, 8, 9, 10, 11]
    figures = loader.cache_figures()
    assert figures["hits"] >= 2 * (SAMPLES - 2 - 4 * subset)


GLOBAL = numpy.random.default_rng(0)


class Streamed(torch.utils.data.Dataset):
    """Counts, draws from a generator of its module's, and reads on in a file, whatever index it is asked for."""

    def __init__(self, path):
        self.calls = 0
        self.numbers = iter(range(1000))
        self.file = open(path)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.calls += 1
        return torch.tensor([self.calls, next(self.numbers), int(self.file.readline()), GLOBAL.random()])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_trial_leaves_no_count_no_draw_and_no_line_read(tmp_path, workers):
    def made(kind, **more):
        global GLOBAL
        GLOBAL = numpy.random.default_rng(0)
        path = tmp_path / "lines"
        path.write_text("".join(f"{number:07}\n" for number in range(5000)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return values(kind(Streamed(path), batch_size=4, num_workers=workers, **more))

    assert made(stallscope.DataLoader, cache="4MiB") == made(torch.utils.data.DataLoader)


class Sliced(torch.utils.data.Dataset):
    """Makes whole batches of what the sampler gives, as it is."""

    def __init__(self):
        self.data = torch.arange(32.0)

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return self.data[index]

    def __getitems__(self, indices):
        assert not isinstance(indices, list)
        return list(self.data[indices])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("more", [{}, {"cache": "4MiB"}], ids=["plain", "cached"])
@pytest.mark.parametrize("batches", [[slice(0, 4), slice(4, 8)], [torch.arange(4), torch.arange(8, 12)]], ids=["slices", "tensors"])
def test_slices_and_tensors_reach_a_data_set_that_makes_batches(batches, more, workers):
    plain = torch.utils.data.DataLoader(Sliced(), batch_sampler=batches, num_workers=workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = stallscope.DataLoader(Sliced(), batch_sampler=batches, num_workers=workers, **more)
        for _ in range(2):
            assert values(ours) == values(plain)


class Named(Parts):
    """Makes whole batches, and says in what its indices came."""

    def __getitems__(self, indices):
        return [torch.tensor([float(index), float(isinstance(indices, tuple))]) for index in indices]


def of_subset():
    return torch.utils.data.Subset(Parts(), range(SAMPLES))


class Given:
    """Batches of four samples, in `form`, made anew for each epoch."""

    def __init__(self, form):
        self.form = form

    def __iter__(self):
        return (self.form(list(range(at, at + 4))) for at in range(0, SAMPLES, 4))

    def __len__(self):
        return SAMPLES // 4


def listed(samples):
    return [sample.tolist() for sample in samples]


def only_later(indices):
    return indices if indices[0] else []


FORMS = {"iterator": iter, "map": lambda indices: map(int, indices), "bytes": bytes, "tuple": tuple, "none": only_later}
LOADERS = {
    "positioned": lambda *args, **more: position(torch.utils.data.DataLoader(*args, **more)),
    "ours": stallscope.DataLoader,
    "cached": lambda *args, **more: stallscope.DataLoader(*args, cache="4MiB", **more),
    "fetched": lambda *args, **more: stallscope.DataLoader(*args, cache="4MiB", fetchers=1, **more),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize(
    "kind,workers", [(Parts, 0), (Parts, 2), (Named, 0), (of_subset, 0)], ids=["parts-0", "parts-2", "whole-0", "subset-0"]
)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_whatever_batches_of_indices_come_in(form, kind, make, workers):
    def got(make):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = make(kind(), batch_sampler=Given(form), collate_fn=listed, num_workers=workers)
            return [list(loader) for _ in range(2)]

    assert got(make) == got(torch.utils.data.DataLoader)


def test_a_position_is_taken_up_behind_batches_that_can_be_looked_at_once():
    loader = stallscope.DataLoader(Parts(), batch_sampler=Given(iter), collate_fn=listed)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    later = stallscope.DataLoader(Parts(), batch_sampler=Given(iter), collate_fn=listed)
    later.load_state_dict(state)
    with unwarned():
        assert list(later) == list(batches)


class Ranged(Parts):
    """Makes batches of slices, too."""

    def __getitems__(self, indices):
        return [self[one] for one in (range(indices.start, indices.stop) if isinstance(indices, slice) else indices)]


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("kind,batches", [(Parts, [3, [1, 2]]), (Ranged, [slice(0, 4), slice(4, 8)])], ids=["number", "slices"])
def test_what_is_no_list_of_indices_is_for_the_process_that_makes_the_batch(kind, batches, make):
    def got(make):
        iterator = iter(make(kind(), batch_sampler=batches, num_workers=1))
        for _ in batches:
            try:
                yield next(iterator).tolist()
            except TypeError as error:
                yield str(error).splitlines()[-1]

    assert list(got(make)) == list(got(torch.utils.data.DataLoader))


def test_a_subset_is_cached_whatever_its_batches_come_in():
    batches = [torch.tensor([0, 2]), numpy.array([1, 3])]
    subset = torch.utils.data.Subset(Parts(), range(4, 8))
    ours = stallscope.DataLoader(subset, batch_sampler=batches, cache="4MiB")
    for _ in range(2):
        assert values(ours) == values(torch.utils.data.DataLoader(subset, batch_sampler=batches)) == [4, 6, 5, 7]
    assert ours.cache_figures()["hits"] == 4


@pytest.mark.parametrize("cache", [None, "4MiB"])
def test_threads_that_share_a_loader_each_get_all_of_it(cache):
    dataset = Parts()
    loader = stallscope.DataLoader(dataset, batch_size=4, num_workers=1, cache=cache)
    got, together = [], threading.Barrier(4)

    def iterate():
        together.wait()
        got.append(values(loader))

    threads = [threading.Thread(target=iterate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [list(range(SAMPLES))] * 4
    assert loader.dataset is dataset and loader.worker_init_fn is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
@pytest.mark.parametrize("kind", ["torch", "stallscope", "cached"])
def test_a_loader_that_was_iterated_can_be_copied(tmp_path, kind, copied):
    make, more = (torch.utils.data.DataLoader, {}) if kind == "torch" else (stallscope.DataLoader, {})
    loader = make(Parts(), batch_size=4, **({"cache": "4MiB"} if kind == "cached" else more))
    with Checkpointer(tmp_path, loader=loader, signals=()):
        under_way = iter(loader)
        next(under_way)
        other = copied(loader)
        assert values(other) == list(range(SAMPLES))
        assert values(under_way) == list(range(4, SAMPLES))
    assert type(other) is make


class Offset(Parts):
    offset = 0

    def decode(self, data):
        return super().decode(data) + self.offset


LOADER = None


def set_by_loader(worker):
    LOADER.dataset.offset = 100 * (worker + 1)


@pytest.mark.parametrize("more", [{}, {"cache": "4MiB"}], ids=["plain", "cached"])
def test_a_workers_init_function_may_know_its_data_set_from_the_loader(monkeypatch, more):
    outcomes = []
    for make, options in ((torch.utils.data.DataLoader, {}), (stallscope.DataLoader, more)):
        monkeypatch.setitem(globals(), "LOADER", make(Offset(), batch_size=4, num_workers=2, worker_init_fn=set_by_loader, **options))
        outcomes.append(values(LOADER))
        assert LOADER.dataset.offset == 0
    assert outcomes[0] == outcomes[1]
