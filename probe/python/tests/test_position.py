"""A loader that is taken up in the midst of an epoch goes on as if it had never stopped."""

import itertools
import json
import random
from functools import lru_cache
from pathlib import Path

import pytest
from collector import PACKAGE, run_warm

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

numpy = pytest.importorskip("numpy", reason="SKIPPED: there is no numpy")

import stallscope  # noqa: E402
from stallscope import _random  # noqa: E402
from stallscope.data.resume.given import position as positioned  # noqa: E402

JOB = Path(__file__).with_name("position_job.py")

# In the first batch, within an epoch, at its last batch, in the first of the next, and later; 6 batches an epoch.
STOPS = (1, 3, 6, 7, 16)

TORCHS = [(order, workers) for order in ("plain", "shuffle", "generator", "weighted") for workers in (0, 2)]
TORCHS += [("persistent", 2)]
OURS = [("shuffle", 0, 0), ("shuffle", 2, 0), ("shuffle", 0, 2), ("shuffle", 3, 1)]
OURS += [("generator", 2, 0), ("generator", 0, 2), ("batched", 2, 0), ("batched", 0, 2)]


def case(loader, order, workers, then=None, stops=STOPS):
    then = workers if then is None else then
    return json.dumps({"loader": loader, "order": order, "workers": workers, "then": then, "stops": stops})


# All in one process: to start Python and torch takes longer than any of them.
CASES = [
    *[case("torch", *one) for one in TORCHS],
    *[case("stallscope", *one, stops=(3, 6)) for one in OURS],
    case("stallscope", "persistent", 1, stops=()),
    case("stallscope", "stream", 0),
    case("stallscope", "whole", 1, stops=(1, 23, 30)),
    case("torch", "lazy", 0, stops=(3,)),
]


@lru_cache(None)
def outcomes(python):
    done = run_warm([python, JOB, *CASES], PYTHONPATH=str(PACKAGE))
    assert done.code == 0, done.err
    return dict(zip(CASES, map(json.loads, done.out.splitlines())))


def ids(batches):
    return [[row[0] for row in batch] for batch in batches]


@pytest.mark.parametrize("order,workers", TORCHS)
def test_torchs_loader_goes_on_with_the_same_order(python, order, workers):
    outcome = outcomes(python)[case("torch", order, workers)]
    assert len(outcome["resumed"]) == len(STOPS)
    for resumed in outcome["resumed"]:
        assert ids(resumed["got"]) == ids(outcome["whole"]) and not resumed["messages"]
        if not workers:
            assert resumed["got"] == outcome["whole"], "augmentation is training's own, and goes on too"


@pytest.mark.parametrize("order,workers,then", OURS)
def test_our_loaders_augmentation_is_the_same_with_another_number_of_workers(python, order, workers, then):
    outcome = outcomes(python)[case("stallscope", order, workers, then, stops=(3, 6))]
    alike = [json.dumps(outcomes(python)[one]["whole"]) for one in CASES if '"stallscope"' in one and f'"{order}"' in one]
    assert set(alike) == {json.dumps(outcome["whole"])}
    for resumed in outcome["resumed"]:
        assert resumed["got"] == outcome["whole"]


def test_our_loaders_order_is_torchs(python):
    ours = outcomes(python)[case("stallscope", "shuffle", 2, 0, stops=(3, 6))]["whole"]
    torchs = outcomes(python)[case("torch", "shuffle", 2)]["whole"]
    assert ids(ours) == ids(torchs) and ours != torchs


def test_augmentation_differs_from_epoch_to_epoch_with_kept_workers(python):
    whole = outcomes(python)[case("stallscope", "persistent", 1, stops=())]["whole"]
    first, second = (sorted(row for batch in whole[at : at + 6] for row in batch) for at in (0, 6))
    assert [row[0] for row in first] == [row[0] for row in second]
    assert all(one[1:] != other[1:] for one, other in zip(first, second))


def test_nothing_that_was_handed_over_is_read_again(python):
    outcome = outcomes(python)[case("torch", "shuffle", 0)]
    for resumed in outcome["resumed"]:
        assert resumed["read"] == sum(map(len, resumed["got"][len(resumed["got"]) - resumed["after"] :]))


def test_a_stream_is_read_again_up_to_its_position(python):
    outcome = outcomes(python)[case("stallscope", "stream", 0)]
    for resumed in outcome["resumed"]:
        assert resumed["got"] == outcome["whole"]


def test_samples_without_batches(python):
    outcome = outcomes(python)[case("stallscope", "whole", 1, stops=(1, 23, 30))]
    for resumed in outcome["resumed"]:
        assert resumed["got"] == outcome["whole"]


def test_a_sampler_that_cannot_be_taken_up_is_state_of(python):
    outcome = outcomes(python)[case("torch", "lazy", 0, stops=(3,))]
    (resumed,) = outcome["resumed"]
    assert "does not give the same first 3 batches" in resumed["messages"][0]
    assert len(resumed["got"]) == len(outcome["whole"]), "and training goes on"


class Augmented:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, random.random()


@pytest.mark.parametrize("looks", [(5,), (7,), (2, 5, 7)], ids=["before the stop", "after it", "on both sides"])
def test_looks_beside_the_pass_that_trains_are_the_same_to_what_follows(looks):
    from stallscope import _random

    def make():
        torch.manual_seed(5)
        loader = stallscope.DataLoader(Augmented(), batch_size=3, shuffle=True, collate_fn=list)
        loader.hear_steps()
        return loader

    def train(loader, first, last):
        """The batches of these steps, four to an epoch, and what a checkpoint after the last has."""
        got = []
        while True:
            for step, batch in enumerate(loader, first + len(got)):
                loader.stepped()
                got.append(batch)
                if step in looks:
                    next(iter(loader))
                if step == last:
                    return got, loader.state_dict(), _random.capture()

    whole, _, _ = train(make(), 1, 12)
    before, position, generators = train(make(), 1, 6)
    resumed = make()
    resumed.load_state_dict(position)
    resumed.go_on_with(generators)
    after, _, _ = train(resumed, 7, 12)
    assert before + after == whole


def flipping(chance):
    return lambda sample: -sample if chance.random() < 0.5 else sample


class Transform:
    """As libraries of augmentations are built: with generators of its own."""

    def __init__(self):
        self.python, self.numpy = random.Random(1), numpy.random.default_rng(2)

    def __call__(self, sample):
        return sample + self.python.random() + self.numpy.random()


class Transformed(torch.utils.data.Dataset):
    def __init__(self):
        self.transforms = [Transform(), flipping(random.Random(3))]
        self.generator = torch.Generator().manual_seed(4)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        sample = torch.rand(2, generator=self.generator, dtype=torch.float64) + index
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class TransformedStream(torch.utils.data.IterableDataset):
    def __init__(self):
        self.samples = Transformed()

    def __iter__(self):
        return (self.samples[index] for index in range(24))


class Mixing:
    """A collate function that draws."""

    def __init__(self):
        self.chance = numpy.random.RandomState(5)

    def __call__(self, samples):
        return torch.stack(samples)[self.chance.permutation(len(samples)).tolist()]


@pytest.mark.parametrize("kind", [Transformed, TransformedStream], ids=["map-style", "stream"])
@pytest.mark.parametrize("loader", ["torch", "stallscope"])
@pytest.mark.parametrize("stop", STOPS)
def test_what_samples_are_drawn_from_goes_on_too(kind, loader, stop):
    """Where training makes them itself."""

    def made():
        torch.manual_seed(6)
        given = {"dataset": kind(), "batch_size": 4, "collate_fn": Mixing(), "shuffle": kind is Transformed or None}
        return stallscope.DataLoader(**given) if loader == "stallscope" else positioned(torch.utils.data.DataLoader(**given))

    def batches(loader):
        while True:
            yield from ([batch.tolist(), loader.state_dict(), torch.get_rng_state()] for batch in loader)

    whole = list(itertools.islice(batches(made()), 24))
    resumed = made()
    resumed.load_state_dict(whole[stop - 1][1])
    torch.set_rng_state(whole[stop - 1][2])
    assert [one for one, _, _ in itertools.islice(batches(resumed), 24 - stop)] == [one for one, _, _ in whole[stop:]]


@pytest.mark.parametrize("in_place", [False, True], ids=["assigned", "in place"])
@pytest.mark.parametrize("kind", ["weights", "indices"])
def test_what_a_script_sets_in_torchs_samplers_between_epochs_goes_on(kind, in_place):
    def made():
        torch.manual_seed(3)
        first = torch.ones(12, dtype=torch.float64) if kind == "weights" else list(range(12))
        sampler = torch.utils.data.WeightedRandomSampler(first, 12) if kind == "weights" else torch.utils.data.SubsetRandomSampler(first)
        loader = stallscope.DataLoader(range(12), batch_size=3, sampler=sampler)
        # As a Checkpointer looks when it is made.
        loader.state_dict()
        return first, loader

    def turn(sampler, epoch):
        value = torch.arange(12.0, dtype=torch.float64) ** (3 * epoch) if kind == "weights" else list(range(11 - 2 * epoch))
        if in_place:
            getattr(sampler, kind)[:] = value
        else:
            setattr(sampler, kind, value)

    _, loader = made()
    for epoch in range(2):
        list(loader)
        turn(loader.sampler, epoch)
    between, process = loader.state_dict(), _random.capture()
    iterator = iter(loader)
    batches = [next(iterator).tolist()]
    within = loader.state_dict()
    batches += [batch.tolist() for batch in iterator]
    for state, expected in ((between, batches), (within, batches[1:])):
        first, again = made()
        before = [float(one) for one in first]
        again.load_state_dict(state)
        _random.restore(process)
        assert [batch.tolist() for batch in again] == expected
        # Which the script may go on from.
        assert ([float(one) for one in first] != before) == in_place


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index + torch.rand(())


@pytest.mark.parametrize("workers", [0, 1])
def test_augmentation_is_that_of_the_generator_whatever_passes_came_before(workers):
    """So a validation loader that nobody gave a position gives after a resume what it would have given."""

    def made():
        return stallscope.DataLoader(Noisy(), batch_size=4, num_workers=workers)

    torch.manual_seed(3)
    loader = made()
    passes = [[batch.tolist() for batch in loader]]
    state = torch.get_rng_state()
    passes.append([batch.tolist() for batch in loader])
    torch.set_rng_state(state)
    passes.append([batch.tolist() for batch in made()])
    assert passes[0] != passes[1] == passes[2]
