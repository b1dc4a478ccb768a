"""A generator that a loader draws its order from, and others as well: training's noise, another loader. A job that is resumed draws there
what torch's loaders draw in one that was never stopped."""

import random

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402
from stallscope import _random  # noqa: E402

EPOCHS, TRAINED, OTHERS, BATCH = 3, 12, 7, 2
# In the midst of an epoch, before and behind what the other loader gives, and at an epoch's end.
STOPS = (1, 3, 4, 6, 8, 11)


class _Stopped(Exception):
    pass


class _Checkpoints:
    """`folder`: None for torch alone."""

    def __init__(self, folder, stop, loader):
        self.checkpointer = folder and stallscope.Checkpointer(folder, loader=loader, every=1 << 40, signals=())
        start = self.checkpointer.restore() if folder else None
        self.epoch, self.step, self.stop = (start.epoch, start.step, stop) if start else (0, 0, stop)

    def trained(self):
        self.step += 1
        if self.checkpointer is None:
            return
        self.checkpointer.step()
        if self.step == self.stop:
            self.checkpointer.save(wait=True)
            self.checkpointer.close()
            raise _Stopped


def _loader(samples, workers, generator):
    return torch.utils.data.DataLoader(range(samples), batch_size=BATCH, shuffle=True, num_workers=workers, generator=generator)


def noise(folder, stop, got, workers, generator):
    """Training draws from the loader's."""
    loader = _loader(TRAINED, workers, generator)
    checkpoints = _Checkpoints(folder, stop, loader)
    for _ in range(checkpoints.epoch, EPOCHS):
        for batch in loader:
            got.append((batch.tolist(), torch.rand(1, generator=generator).item()))
            checkpoints.trained()


def validation(folder, stop, got, workers, generator):
    """Another loader draws its order there in mid-epoch."""
    loader, held_out = _loader(TRAINED, workers, generator), _loader(OTHERS, 0, generator)
    checkpoints = _Checkpoints(folder, stop, loader)
    for _ in range(checkpoints.epoch, EPOCHS):
        for batch in loader:
            got.append((batch.tolist(), [one.tolist() for one in held_out] if checkpoints.step % 4 == 1 else None))
            checkpoints.trained()


def _beside(folder, stop, got, workers, generator, other_first):
    loader, other = _loader(TRAINED, workers, generator), _loader(OTHERS, workers, generator)
    checkpoints = _Checkpoints(folder, stop, {"trained": loader, "other": other})
    others = iter(other) if other_first else None
    for _ in range(checkpoints.epoch, EPOCHS):
        batches = iter(loader)
        others = others or iter(other)
        for batch in batches:
            beside = next(others, None)
            if beside is None:
                others = iter(other)
                beside = next(others)
            got.append((batch.tolist(), beside.tolist()))
            checkpoints.trained()


def beside(*given):
    """Two train, the shorter over and over."""
    _beside(*given, False)


def beside_first(*given):
    """The shorter is iterated first."""
    _beside(*given, True)


def _trained(loop, workers, folder=None, stop=None):
    random.seed(5)
    torch.manual_seed(5)
    got, generator = [], torch.Generator().manual_seed(5)
    try:
        loop(folder, stop, got, workers, generator)
    except _Stopped:
        return got
    return got, generator.get_state().tolist(), _random.capture()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("loop", [noise, validation, beside, beside_first], ids=lambda loop: loop.__name__)
def test_a_generator_that_others_draw_from_goes_on(tmp_path, loop, workers):
    whole, *ended = _trained(loop, workers)
    for stop in STOPS:
        folder = tmp_path / str(stop)
        before = _trained(loop, workers, folder, stop)
        after, *ends = _trained(loop, workers, folder)
        assert (stop, before + after) == (stop, whole)
        assert (stop, *ends) == (stop, *ended)


@pytest.mark.parametrize("workers, stops", [(0, (1, 3, 7, 9)), (2, (1, 7))])
def test_it_goes_on_with_more_and_fewer_workers_until_an_epochs_end_is_drawn(tmp_path, workers, stops):
    """From there on a job that was never stopped draws otherwise with each number of them."""
    whole, *_ = _trained(noise, 1)
    for stop in stops:
        folder = tmp_path / str(stop)
        before = _trained(noise, 1, folder, stop)
        after, *_ = _trained(noise, workers, folder)
        assert (stop, before + after[:1]) == (stop, whole[: stop + 1])


def test_a_sampler_that_is_not_as_far_ahead_as_it_was_draws_its_own(tmp_path):
    """Its draws for what workers have ahead are still to come."""

    class Lazy:
        def __init__(self, generator):
            self.generator = generator

        def __len__(self):
            return TRAINED

        def __iter__(self):
            for _ in range(TRAINED):
                yield int(torch.randint(TRAINED, (1,), generator=self.generator))

    def lazy(folder, stop, got, workers, generator):
        loader = torch.utils.data.DataLoader(range(TRAINED), batch_size=BATCH, sampler=Lazy(generator), num_workers=workers)
        checkpoints = _Checkpoints(folder, stop, loader)
        for _ in range(checkpoints.epoch, EPOCHS):
            for batch in loader:
                got.append(batch.tolist())
                checkpoints.trained()

    # The seed of workers comes from the process's.
    whole, *_ = _trained(lazy, 0)
    for stop in STOPS:
        folder = tmp_path / str(stop)
        before = _trained(lazy, 1, folder, stop)
        after, *_ = _trained(lazy, 0, folder)
        assert (stop, before + after) == (stop, whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_that_is_set_behind_iter_is_that_of_the_resumed_pass(tmp_path, workers, recwarn):
    def late(folder, stop, got, workers, generator):
        sampler = torch.utils.data.distributed.DistributedSampler(range(TRAINED), num_replicas=1, rank=0)
        loader = torch.utils.data.DataLoader(range(TRAINED), batch_size=BATCH, sampler=sampler, num_workers=workers)
        checkpoints = _Checkpoints(folder, stop, loader)
        for epoch in range(checkpoints.epoch, EPOCHS):
            batches = iter(loader)
            # Without workers nothing has been asked of the sampler yet.
            sampler.set_epoch(epoch)
            for batch in batches:
                got.append(batch.tolist())
                checkpoints.trained()

    whole, *_ = _trained(late, workers)
    for stop in STOPS:
        folder = tmp_path / str(stop)
        before = _trained(late, workers, folder, stop)
        after, *_ = _trained(late, workers, folder)
        assert (stop, before + after) == (stop, whole)
    assert not [one for one in recwarn if "sampler" in str(one.message)]
