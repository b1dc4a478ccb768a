"""Loops as scripts have them, cut off at each step and gone on with, give what the whole loop gives with torch alone."""

import itertools
import random

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path
from unwarned import unwarned

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402

SAMPLES, BATCH, EPOCHS = 22, 4, 4


class CutOff(Exception):
    pass


class Job:
    """What a loop is given: without a folder it is torch's alone."""

    def __init__(self, kind, folder=None, stop=None, every=1):
        torch.manual_seed(3)
        random.seed(3)
        self.kind, self.folder, self.stop, self.every = kind, folder, stop, every
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.events, self.steps, self.epoch, self.checkpointer = [], 0, 0, None

    def loader(self, samples=SAMPLES, **options):
        return self.loader_of(range(samples), batch_size=BATCH, **options)

    def loader_of(self, dataset, **options):
        kind = stallscope.DataLoader if self.kind == "stallscope" and self.folder else torch.utils.data.DataLoader
        return kind(dataset, **options)

    def begin(self, loader):
        if self.folder:
            parts = {"model": self.model, "optimizer": self.optimizer, "loader": loader}
            self.checkpointer = stallscope.Checkpointer(self.folder, every=self.every, keep=100, signals=(), **parts)
            start = self.checkpointer.restore()
            if start:
                self.steps, self.epoch = start.step, start.epoch

    def backward(self, batch):
        self.model(batch[:, None] / SAMPLES).square().mean().backward()
        self.events.append((batch.tolist(), torch.rand(()).item(), random.random()))

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.events.append(self.model.weight.item())
        self.steps += 1
        if self.checkpointer is not None:
            self.checkpointer.step()
            self.checkpointer._wait()
        if self.steps == self.stop and self.every == 1:
            raise CutOff

    def end_epoch(self, epoch):
        """Saves by hand; `stop` counts epochs here."""
        if self.checkpointer is not None:
            self.checkpointer.save(wait=True)
        if epoch + 1 == self.stop:
            raise CutOff


def endless(loader):
    while True:
        yield from loader


def gradient_of_an_epoch(job):
    loader = job.loader(shuffle=True)
    job.begin(loader)
    for _ in range(job.epoch, EPOCHS):
        for batch in loader:
            job.backward(batch)
        job.step()


def gradient_of_a_part(job):
    loader = job.loader(shuffle=True)
    job.begin(loader)
    for _ in range(job.epoch, EPOCHS):
        for batch in itertools.islice(loader, 3):
            job.backward(batch)
        job.step()


def closure_over_an_epoch(job):
    loader = job.loader(shuffle=True)
    job.begin(loader)
    for _ in range(job.epoch, EPOCHS):
        for _ in range(3):
            for batch in loader:
                job.backward(batch)
        job.step()


def two_loaders_at_once(job):
    loaders = [job.loader(shuffle=True), job.loader(10, shuffle=True)]
    job.begin(loaders)
    for _ in range(job.epoch, EPOCHS):
        for loader in loaders:
            for batch in loader:
                job.backward(batch)
        job.step()


def evaluated_on_what_it_trained(job):
    loader = job.loader(shuffle=True)
    job.begin(loader)
    for _ in range(job.epoch, EPOCHS):
        for batch in loader:
            job.backward(batch)
            job.step()
        job.events.append([batch.tolist() for batch in loader])


def drawing_before_a_batch(job):
    """Noise, and which loader is next, from a generator function that begins its loader when it is first asked."""
    loaders = [job.loader(shuffle=True), job.loader(10, shuffle=True)]
    job.begin(loaders)
    batches = [endless(loader) for loader in loaders]
    for _ in range(job.steps, 12):
        job.events.append(torch.rand(()).item())
        job.backward(next(random.choice(batches)))
        job.step()


def drawing_once_an_epoch(job):
    """A level of noise, say; and a batch of noise with an iterator that is begun first."""
    loader = job.loader(shuffle=True)
    job.begin(loader)
    for _ in range(job.epoch, EPOCHS):
        level = torch.rand(()).item(), random.random()
        batches = iter(loader)
        while True:
            noise = torch.rand(()).item()
            batch = next(batches, None)
            if batch is None:
                break
            job.events.append([level, noise])
            job.backward(batch)
            job.step()


def a_level_for_each_epoch(job):
    loader = job.loader(shuffle=True)
    job.begin(loader)
    for _ in range(job.epoch, EPOCHS):
        level = torch.rand(()).item(), random.random()
        for batch in loader:
            job.events.append(level)
            job.backward(batch)
            job.step()


def evaluates_and_draws(job):
    loader, evaluated = job.loader(shuffle=True), torch.utils.data.DataLoader(range(3))
    job.begin(loader)
    for _ in range(job.epoch, EPOCHS):
        level = torch.rand(()).item()
        for batch in loader:
            job.events.append(level)
            job.backward(batch)
            job.step()
        job.events.append([batch.tolist() for batch in evaluated])


def ends_its_epochs_early(job):
    loader = job.loader(shuffle=True)
    job.begin(loader)
    first = (loader.state_dict()["batches"] or 0) if job.folder else 0
    for _ in range(job.epoch, EPOCHS):
        for number, batch in enumerate(loader, first):
            if number == 3:
                break
            job.backward(batch)
            job.step()
        first = 0


def one_beside_an_endless_one(job):
    loaders = [job.loader(10, shuffle=True), job.loader(shuffle=True)]
    job.begin(loaders)
    more = endless(loaders[1])
    for epoch in range(job.epoch, EPOCHS):
        for batch, other in zip(loaders[0], more):
            job.backward(torch.cat([batch, other]))
            job.step()
        job.end_epoch(epoch)


class InPlace(torch.utils.data.Sampler):
    """As bucketing samplers shuffle their batches."""

    def __init__(self):
        self.indices = list(range(SAMPLES))

    def __iter__(self):
        random.shuffle(self.indices)
        return iter(self.indices)

    def __len__(self):
        return SAMPLES


def shuffles_in_place(job):
    loader = job.loader(sampler=InPlace())
    job.begin(loader)
    for epoch in range(job.epoch, EPOCHS):
        for batch in loader:
            job.backward(batch)
            job.step()
        if job.every != 1:
            job.end_epoch(epoch)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(SAMPLES))


class Batches:
    """A sampler that does not say how many it gives."""

    def __iter__(self):
        order = torch.randperm(SAMPLES).tolist()
        return iter([order[:3], order[3:10], order[10:]])


def without_a_length(loader_of):
    def loop(job):
        loader = loader_of(job)
        job.begin(loader)
        for _ in range(job.epoch, EPOCHS):
            for batch in loader:
                job.backward(batch)
                job.step()

    return loop


a_stream = without_a_length(lambda job: job.loader_of(Stream(), batch_size=BATCH))
batches_of_its_own = without_a_length(lambda job: job.loader_of(range(SAMPLES), batch_sampler=Batches()))

LOOPS = [gradient_of_an_epoch, gradient_of_a_part, closure_over_an_epoch, two_loaders_at_once, evaluated_on_what_it_trained]


def ran(loop, *given):
    job = Job(*given)
    try:
        loop(job)
    except CutOff:
        pass
    if job.checkpointer is not None:
        job.checkpointer.close()
    return job


@pytest.mark.parametrize("kind", ["torch", "stallscope"])
@pytest.mark.parametrize("loop", LOOPS)
def test_it_goes_on_as_with_torch_alone(loop, kind, tmp_path):
    whole = ran(loop, "torch").events
    for stop in (1, 2, 3):
        folder = tmp_path / str(stop)
        first = ran(loop, kind, folder, stop).events
        rest = ran(loop, kind, folder).events
        assert first + rest == whole


@pytest.mark.parametrize("kind", ["torch", "stallscope"])
@pytest.mark.parametrize(
    ("loop", "stops", "every"),
    [(drawing_before_a_batch, (3, 4, 8), 1), (drawing_once_an_epoch, (1, 2, 6, 7, 8, 13), 1)]
    + [(a_level_for_each_epoch, (2, 5, 6, 7, 8, 12, 17), 1), (ends_its_epochs_early, (2, 4, 6, 9), 1), (one_beside_an_endless_one, (1, 2, 3), 10**6)]
    + [(a_stream, (1, 3, 6, 8), 1), (batches_of_its_own, (1, 2, 3, 5), 1)]
    + [(shuffles_in_place, (5, 6, 8, 14), 1), (shuffles_in_place, (1, 2, 3), 10**6)],
)
def test_what_a_loop_does_between_its_batches_is_its_own(loop, stops, every, kind, tmp_path):
    whole = ran(loop, "torch").events
    for stop in stops:
        folder = tmp_path / str(stop)
        first = ran(loop, kind, folder, stop, every).events
        with unwarned():
            assert first + ran(loop, kind, folder, None, every).events == whole


def test_a_first_epoch_that_may_have_ended_early_is_warned_of(tmp_path):
    ran(ends_its_epochs_early, "torch", tmp_path, 3)
    with pytest.warns(RuntimeWarning, match="went on behind batch 3 was left before a step, and counts as a look"):
        ran(ends_its_epochs_early, "torch", tmp_path)


def test_other_random_numbers_before_an_epoch_that_is_taken_up_are_warned_of(tmp_path):
    for loop, stop, words in [
        (evaluates_and_draws, 8, "drew other random numbers before this epoch"),
        (a_level_for_each_epoch, 1, "drew random numbers before its first batch"),
        (drawing_before_a_batch, 1, "drew random numbers before its first batch"),
    ]:
        folder = tmp_path / loop.__name__
        ran(loop, "torch", folder, stop)
        with pytest.warns(RuntimeWarning, match=words):
            ran(loop, "torch", folder)


def test_that_a_loop_draws_before_its_batches_is_known_after_a_resume(tmp_path):
    whole = ran(drawing_before_a_batch, "torch").events
    events = [event for stop in (3, 4, 5, 6) for event in ran(drawing_before_a_batch, "torch", tmp_path, stop).events]
    assert events + ran(drawing_before_a_batch, "torch", tmp_path).events == whole


class Shares(torch.utils.data.Sampler):
    """As many samples as its share says; a script sets that, and the epoch, in mid-epoch for the next one."""

    def __init__(self):
        self.share, self.epoch = 1.0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order[: int(SAMPLES * self.share)])

    def __len__(self):
        return int(SAMPLES * self.share)


def sets_its_sampler(job, make=Shares, workers=0):
    sampler = make()
    loader = job.loader(sampler=sampler, num_workers=workers)
    job.begin(loader)
    for _ in range(job.epoch, EPOCHS):
        for batch in loader:
            job.backward(batch)
            if job.steps % 3 == 1:
                sampler.set_epoch(sampler.epoch + 1)
                if hasattr(sampler, "share"):
                    sampler.share -= 0.1
            job.step()


def torchs():
    return torch.utils.data.distributed.DistributedSampler(range(SAMPLES), num_replicas=2, rank=1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [Shares, torchs])
def test_what_a_script_sets_in_mid_epoch_is_there_for_the_next(make, workers, tmp_path):
    def loop(job):
        sets_its_sampler(job, make, workers)

    whole = ran(loop, "torch").events
    for stop in (1, 2, 4, 5):
        folder = tmp_path / str(stop)
        first = ran(loop, "torch", folder, stop).events
        with unwarned():
            assert first + ran(loop, "torch", folder).events == whole


def test_a_loop_that_goes_on_after_a_restore_is_where_the_position_is(tmp_path):
    job = Job("torch", tmp_path)
    loader = job.loader(shuffle=True)
    job.begin(loader)
    seen = []
    with pytest.warns(RuntimeWarning, match="call iter.loader., or begin the loop over it, after restore"):
        for number, batch in enumerate(loader):
            if number == 3:
                job.checkpointer.restore(2)
            seen.append(batch.tolist())
            job.step()
            if number == 4:
                break
            at = loader.state_dict()
    # Of the pass that trains, not of the one that was restored.
    assert at["batches"] == 4
    job.checkpointer.close()
    again = Job("torch", tmp_path)
    loader = again.loader(shuffle=True)
    again.begin(loader)
    rest = [batch.tolist() for batch in loader]
    again.checkpointer.close()
    assert sorted(sum(seen + rest, [])) == list(range(SAMPLES))


def test_an_iteration_that_began_before_a_restore_is_warned_of(tmp_path):
    ran(evaluated_on_what_it_trained, "torch", tmp_path, 2)
    job = Job("torch", tmp_path)
    loader = job.loader(shuffle=True)
    batches = iter(loader)
    job.begin(loader)
    job.backward(next(batches))
    with pytest.warns(RuntimeWarning, match="call iter.loader., or begin the loop over it, after restore"):
        job.step()
    with unwarned():
        job.backward(next(batches))
        job.step()
    job.checkpointer.close()
