"""Ranks tell the pool their uses, and it tells them one miss-ratio curve; whatever the pool does, nobody waits."""

import os
import random
import signal
from functools import partial
from types import SimpleNamespace

import pytest
import torch.utils.data
from test_pool import folder, in_child, pools, space, until  # noqa: F401

from stallscope import _native
from stallscope.data.cache import membership
from stallscope.data.cache.miss_curve import JointCurve
from stallscope.data.cache.split import base_index
from stallscope.data.sampling.weights import PlannedSubset

SAMPLES, BATCH = 1000, 50
OF_JOB = 7


def joint(of, rank, ranks=2, job=OF_JOB):
    return _native.Joint(of, 1, SAMPLES, SAMPLES // ranks, job, rank, ranks)


def kept(of, samples):
    """Keeps some samples of 1,000 bytes."""
    for sample in range(samples):
        assert of.claim(sample, 0) and of.fill(sample, 0, bytes(1000))


def epochs(ranks, count, seed=3, spaces=()):
    """Every rank its part of each shuffle, a batch in turn; each has been heard before the next, where it says of whom."""
    draws = random.Random(seed)
    for _ in range(count):
        order = draws.sample(range(SAMPLES), SAMPLES)
        for one in ranks:
            one.epoch()
        for at in range(0, SAMPLES, BATCH):
            turn = at // BATCH % len(ranks)
            ranks[turn].handed(order[at : at + BATCH])
            if spaces:
                # Answered behind what was sent before.
                assert not spaces[turn].claim(0, 0)


def ratios_of(of):
    """Bytes and misses of a curve; None before there is one."""
    found = of.curve()
    points = found and [(capacity, misses / uses) for capacity, uses, misses in found[4]]
    return points or None


def test_two_ranks_get_the_curve_of_both(folder):  # noqa: F811
    spaces = [space(folder, capacity=256_000) for _ in range(2)]
    kept(spaces[0], 200)
    ranks = [joint(of, rank) for rank, of in enumerate(spaces)]
    assert [one.curve() for one in ranks] == [None, None]
    epochs(ranks, 3, spaces=spaces)
    assert ratios_of(ranks[0]) == ratios_of(ranks[1])
    assert [one.curve()[1:3] for one in ranks] == [(True, 2), (False, 2)], "the first shows it"
    # A quarter, half, once, twice, and all: a pinned share of the samples is that share of a shuffle's hits.
    assert [round(misses, 3) for _, misses in ratios_of(ranks[0])] == [0.937, 0.875, 0.75, 0.5, 0.0]
    del ranks[0]
    del spaces[0]
    # It is the curve of both still.
    until(lambda: ranks[0].curve()[1:3] == (True, 2))


def curve_of(of, dataset, rank):
    """As the loader of a rank has it; each rank is a process."""
    membership._made.clear()
    sampler = torch.utils.data.RandomSampler(dataset)
    loader = SimpleNamespace(
        dataset=dataset, batch_sampler=None, sampler=sampler, sampling="plain", batch_size=BATCH, drop_last=False
    )
    tally = SimpleNamespace(loader=0)
    return JointCurve(SAMPLES, of, tally, membership.member_of(loader, b"key", SAMPLES, rank, 2), dataset)


@pytest.mark.parametrize("first", [500, 300])
def test_ranks_with_subsets_of_their_own_get_the_curve_of_what_they_share(folder, first):  # noqa: F811
    order = random.Random(1).sample(range(SAMPLES), SAMPLES)
    # Also of a subset, and with indices that are no Python numbers.
    inner = torch.utils.data.Subset(range(SAMPLES), torch.tensor(order))
    parts = [torch.utils.data.Subset(inner, range(first)), torch.utils.data.Subset(inner, range(first, SAMPLES))]
    spaces = [space(folder, capacity=256_000) for _ in parts]
    kept(spaces[0], 200)
    ranks = [curve_of(of, part, rank) for rank, (of, part) in enumerate(zip(spaces, parts))]
    draws = random.Random(3)
    for _ in range(3):
        for one in ranks:
            one.epoch()
        for one, of, part in zip(ranks, spaces, parts):
            epoch = draws.sample(range(len(part)), len(part))
            for at in range(0, len(part), BATCH):
                one.batch(epoch[at : at + BATCH])
            # Answered behind what was sent before.
            assert not of.claim(0, 0)
    # The same as without subsets: a pinned share of all samples.
    assert [round(misses, 3) for _, misses in ranks[1].points()] == [0.937, 0.875, 0.75, 0.5, 0.0]
    assert ranks[0].points() == ranks[1].points()


def test_an_epoch_is_as_long_as_its_draws_and_no_shorter_than_a_ranks_part():
    dataset = range(100)
    samplers = {
        "torch's own part": (torch.utils.data.DistributedSampler(dataset, num_replicas=8, rank=3), 13),
        "a data set of its own": (torch.utils.data.SequentialSampler(dataset), 100),
        "a few draws": (torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=3), 13),
        "of no length": (iter(dataset), 13),
    }
    for name, (sampler, expected) in samplers.items():
        assert membership._epoch_uses(dataset, sampler, 8) == expected, name


def test_plans_and_scores_go_by_what_ranks_share():
    dataset = torch.utils.data.Subset(range(SAMPLES), [7, 5, 3])
    outcome = []
    heard = SimpleNamespace(planned=outcome.append, scored=outcome.append)
    for of_space, expected in [(True, 5), (False, 1)]:
        of = PlannedSubset(heard, partial(base_index, dataset), SimpleNamespace(ghost=heard, of_space=of_space))
        of.planned([(1, 9)])
        of.scored([(1, 0.5)])
        assert outcome == [[(expected, 9)], [(5, 9)], [(expected, 0.5)], [(5, 0.5)]]
        outcome.clear()
    assert JointCurve.of_space


def test_a_second_job_leaves_none_with_a_curve_until_it_has_gone(folder):  # noqa: F811
    spaces = [space(folder, capacity=256_000) for _ in range(3)]
    kept(spaces[0], 200)
    ranks = [joint(of, rank) for rank, of in enumerate(spaces[:2])]
    other = joint(spaces[2], 1)
    epochs([*ranks, other], 1)
    until(lambda: ranks[0].curve() and ranks[0].curve()[0])
    epochs(ranks, 3)
    assert ranks[0].curve()[0] and not ratios_of(ranks[0]) and not ratios_of(other)
    del other
    spaces.pop()
    until(lambda: not ranks[0].curve()[0])
    epochs(ranks, 3)
    until(lambda: ratios_of(ranks[0]))


def test_each_of_two_jobs_that_look_alike_shows_it(monkeypatch):
    shown = []
    monkeypatch.setattr(_native, "cache_curve", lambda **fields: shown.append(fields))
    monkeypatch.setattr(_native, "cache_is_mixed", lambda **fields: shown.append(fields))
    for is_mixed, is_teller in [(True, True), (True, False), (False, True), (False, False)]:
        one = JointCurve.__new__(JointCurve)
        one.tally = SimpleNamespace(loader=4)
        points = [] if is_mixed else [(100, 10, 5)]
        one.ghost = SimpleNamespace(curve=lambda: (is_mixed, is_teller, 2, 1000, points))
        one.whole = 1.0
        one.push()
        assert len(shown) == int(is_mixed or is_teller)
        assert all(("points" not in of) is is_mixed and of["ranks"] == 2 for of in shown)
        shown.clear()


def sockets():
    """Inodes of the sockets of this process, by descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            of = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if of.startswith("socket:"):
            found[name] = of
    return found


def test_nobody_waits_for_a_pool_that_is_stopped(folder):  # noqa: F811
    of = space(folder, capacity=256_000)
    kept(of, 200)
    one = joint(of, 0)
    before = sockets()
    assert before
    (pool,) = pools(folder)
    os.kill(pool, signal.SIGSTOP)
    try:
        # More than its socket and all that may wait: what is too much is dropped. A send that waits would end the
        # connection, which no epoch's beginning finds again here.
        for _ in range(300):
            for at in range(0, SAMPLES, BATCH):
                one.handed(list(range(at, at + BATCH)))
    finally:
        os.kill(pool, signal.SIGCONT)
    assert of.figures()["clients"] == 1
    for _ in range(3):
        epochs([one], 1)
    until(lambda: ratios_of(one))
    # Who looks for it finds a lost one again, by another socket.
    assert of.alive and sockets() == before, "over the same connection"
    assert of.figures()["clients"] == 1


def test_a_pool_that_was_killed_is_fed_again_when_there_is_another(folder):  # noqa: F811
    of = space(folder, capacity=256_000)
    kept(of, 200)
    one = joint(of, 0)
    epochs([one], 3)
    until(lambda: ratios_of(one))
    (pool,) = pools(folder)
    os.kill(pool, signal.SIGKILL)
    until(lambda: not pools(folder))
    epochs([one], 1)
    until(lambda: of.alive and of.figures()["kept_samples"] == 0)
    assert ratios_of(one) is None
    kept(of, 200)
    epochs([one], 3)
    until(lambda: ratios_of(one))


def test_a_forked_child_feeds_nothing(folder):  # noqa: F811
    of = space(folder, capacity=256_000)
    kept(of, 200)
    one = joint(of, 0)
    epochs([one], 3, spaces=[of])
    before = one.curve()
    assert ratios_of(one)

    def child():
        assert of.claim(500, 0)
        epochs([one], 2, seed=9)
        assert one.curve() == before

    assert in_child(child) == 0
    assert one.curve() == before
