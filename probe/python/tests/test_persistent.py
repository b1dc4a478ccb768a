"""A job is taken up exactly where workers stay from epoch to epoch: torch draws their seed once, from the generator that the
order of samples comes from."""

import gc
import warnings
import weakref

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402
from stallscope import Checkpointer  # noqa: E402

EPOCHS = 3
KINDS = {"torch": torch.utils.data.DataLoader, "stallscope": stallscope.DataLoader}


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


class Job:
    """Trains and validates; `own`: whether the training loader has a generator of its own."""

    def __init__(self, kind, own, trains_persistent, validates, workers=1, validated=2, validates_persistent=True):
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(5) if own else None
        stays = {"num_workers": workers, "persistent_workers": True}
        self.training = KINDS[kind](
            Numbers(20), batch_size=4, shuffle=True, generator=generator, **(stays if trains_persistent else {})
        )
        self.validating = None
        if validates is not None:
            self.validating = KINDS[validates](Numbers(6), batch_size=validated, shuffle=True, **(stays if validates_persistent else {}))

    def run(self, checkpointer, first=0, got=None, save_at=None):
        """Ids by batch, and a draw of training's; `save_at`: (epoch, batches of it), where it saves and ends."""
        got = [] if got is None else got
        for epoch in range(first, EPOCHS):
            for number, batch in enumerate(self.training):
                got.append((batch.tolist(), torch.rand(1).item()))
                checkpointer.step()
                if save_at == (epoch, number + 1):
                    checkpointer.save(wait=True)
                    return got
            if self.validating is not None:
                got += [batch.tolist() for batch in self.validating]
            if save_at == (epoch, "end"):
                checkpointer.save(wait=True)
                return got
        return got


CASES = [
    ("torch", False, True, None), ("torch", True, True, None), ("stallscope", False, True, None), ("stallscope", True, True, None),
    ("torch", False, False, "torch"), ("torch", False, True, "torch"), ("stallscope", False, True, "stallscope"),
    ("stallscope", False, False, "torch"), ("torch", True, False, "torch"),
]  # fmt: skip


@pytest.mark.parametrize("save_at", [(0, "end"), (1, 2)], ids=["between epochs", "in mid-epoch"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_follows_is_what_would_have_followed(case, save_at, tmp_path):
    whole, got = resumed(tmp_path, case, save_at)
    assert got == whole


def resumed(folder, case, save_at, **changed):
    """What the whole job gave, and what it gave where it was cut, and then resumed with what `changed`."""
    job = Job(*case)
    with Checkpointer(folder / "whole", loader=job.training, every=10**6) as checkpointer:
        whole = job.run(checkpointer)
    job = Job(*case)
    with Checkpointer(folder / "cut", loader=job.training, every=10**6) as checkpointer:
        before = job.run(checkpointer, save_at=save_at)
    del job
    again = Job(*case, **changed)
    torch.manual_seed(99)
    with Checkpointer(folder / "cut", loader=again.training, every=10**6) as checkpointer:
        start = checkpointer.restore()
        return whole, before + again.run(checkpointer, start.epoch)


def trained(got):
    return [one for one in got if type(one) is tuple]


@pytest.mark.parametrize("save_at", [(0, "end"), (1, 2)], ids=["between epochs", "in mid-epoch"])
@pytest.mark.parametrize("changed", [{"workers": 2}, {"validated": 3}], ids=str)
def test_other_workers_and_other_batches_of_validation_change_no_order(changed, save_at, tmp_path):
    whole, got = resumed(tmp_path, ("torch", False, True, "torch"), save_at, **changed)
    assert trained(got) == trained(whole)


@pytest.mark.parametrize(
    "trains, validates, words",
    [
        ((True, False), (True, True), "the trained loader stayed from epoch to epoch in the job that saved the checkpoint and do not here"),
        ((False, True), (True, True), "the trained loader went with each epoch, or were none, in the job that saved the checkpoint and stay here"),
        ((False, False), (True, False), "a loader of Numbers stayed from epoch to epoch"), ((False, False), (False, True), "a loader of Numbers went with each epoch"),
        ((False, False), (True, True), None),
    ],
)  # fmt: skip
def test_workers_that_stay_in_one_of_both_jobs_are_warned_of(trains, validates, words, tmp_path):
    def job(at):
        return Job("torch", False, trains[at], "torch", validates_persistent=validates[at])

    one = job(0)
    with Checkpointer(tmp_path, loader=one.training, every=10**6) as checkpointer:
        one.run(checkpointer, save_at=(0, "end"))
    del one
    again = job(1)
    with warnings.catch_warnings(record=True) as caught, Checkpointer(tmp_path, loader=again.training, every=10**6) as checkpointer:
        warnings.simplefilter("always")
        again.run(checkpointer, checkpointer.restore().epoch)
    sentences = [str(one.message) for one in caught if "stallscope" in str(one.message)]
    assert len(sentences) == (words is not None) and all(words in one for one in sentences), sentences


def test_what_a_job_took_up_and_did_not_use_is_nothing_to_the_next_one_in_its_process(tmp_path):
    def case():
        return Job("torch", False, False, "torch")

    whole = case().run(Nothing())
    job = case()
    with Checkpointer(tmp_path, loader=job.training, every=10**6) as checkpointer:
        job.run(checkpointer, save_at=(0, "end"))
    job = case()
    with Checkpointer(tmp_path, loader=job.training, every=10**6) as checkpointer:
        checkpointer.restore()
    # Ended before it validates; in a cycle, as jobs of frameworks are.
    job.itself = job
    del job, checkpointer
    assert case().run(Nothing()) == whole


class Nothing:
    """In place of a Checkpointer."""

    def step(self):
        pass


@pytest.mark.parametrize("signals", [(), ("SIGTERM",)], ids=["unwatched", "watched"])
def test_workers_end_with_their_job(tmp_path, signals):
    """Not when the collector comes to them, which is a wait of some seconds in the midst of whatever comes next."""
    loader = torch.utils.data.DataLoader(range(8), batch_size=4, num_workers=1, persistent_workers=True)
    reference = weakref.ref(loader)
    gc.disable()
    try:
        with Checkpointer(tmp_path, loader=loader, signals=signals, every=10**6) as checkpointer:
            for _ in loader:
                checkpointer.step()
        del loader, checkpointer
        assert reference() is None
    finally:
        gc.enable()
