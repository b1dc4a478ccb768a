"""Truth jobs at reduced length, with wider margins than `make bench-truth`."""

from statistics import median

import pytest
from cases import CASES
from compare import CAUSES
from verdicts import complaint, is_decided

# Points of training time by which a cause may be off.
KERNEL_AND_SHIM, KERNEL_ALONE, SHIM_ALONE = 4, 6, 8
# Per cent by which the training time may be off: phases are not mixed up.
PHASES = 6
# Points of training time by which training is preempted from which a machine is busy elsewhere, where the case has no neighbours of its
# own and one rank: on a quiet machine such have up to 8.
BUSY = 10

TESTED = [case for case in CASES if case.tested]


def is_busy_elsewhere(case, found):
    return not case.neighbours and case.ranks == 1 and found.truth["preempted"] >= BUSY


def check(measure, margin, together=(), blurred=()):
    """Asserts that no cause of any rank is off by more than `margin` points, nor the sum of those `together`; the first
    run's outcome. A machine that was busy elsewhere spoils a short run: one that is off is made four times more, and the
    median of the five counts. `blurred`: a case and the causes that count together where the machine is busy all along."""

    def error_of(run, group):
        return sum(run.error(cause) for cause in group)

    groups = [tuple(together)] if together else []
    groups += [(cause,) for cause in CAUSES if cause not in together]
    first = measure()
    runs = [first.comparisons]
    for rank in range(len(first.comparisons)):
        for group in groups:
            if abs(error_of(runs[0][rank], group)) <= margin:
                continue
            while len(runs) < 5:
                runs.append(measure().comparisons)
            if blurred and group[0] in blurred[1] and all(is_busy_elsewhere(blurred[0], run[rank]) for run in runs):
                group = blurred[1]
            error = median(error_of(run[rank], group) for run in runs)
            assert abs(error) <= margin, f"{group} is {error:+.1f} points off: {runs}"
    return first


@pytest.mark.parametrize("case", TESTED, ids=lambda case: case.name)
def test_kernel_and_shim_agree_with_the_truth(bench, case):
    together = ("fetch", "prep") if case.reads_on_cpu else ()
    outcome = check(lambda: bench.run(case), KERNEL_AND_SHIM, together=together)
    assert len(outcome.comparisons) == (0 if case.withheld else case.ranks)
    for found in outcome.comparisons:
        assert abs(found.phase_error) <= PHASES, found
        if case.hidden_bar:
            assert found.seen_hidden is not None, "no device was watched"
            assert abs(found.seen_hidden - found.true_hidden) <= KERNEL_AND_SHIM
    saves(case, outcome, KERNEL_AND_SHIM)
    verdict(bench, case, outcome)


@pytest.mark.parametrize("case", [case for case in TESTED if case.reads_on_cpu], ids=lambda case: case.name)
def test_with_syscall_hooks_reading_on_the_cpu_agrees_too(bench, case):
    check(lambda: bench.run(case, "--syscalls"), KERNEL_AND_SHIM)


@pytest.mark.parametrize("case", [case for case in TESTED if case.alone_bar and not case.alone_may_not_know], ids=lambda case: case.name)
def test_the_shim_alone_agrees_with_the_truth(bench, case):
    check(lambda: bench.run(case, "--no-kernel"), SHIM_ALONE)


def saves(case, outcome, margin):
    """Each checkpoint was seen, and missing them all would have shown."""
    if "--checkpoint" not in case.flags:
        return
    for found, rank in zip(outcome.comparisons, outcome.report["ranks"], strict=True):
        assert found.saves > 2 and found.truth["persist"] > 2 * margin, found
        # One may be under way where the recording begins or ends.
        assert abs(rank["checkpoints"]["count"] - found.saves) <= 1, (rank["checkpoints"], found)


def verdict(bench, case, outcome):
    judged = []
    for _ in range(5):
        if is_decided(case, outcome):
            judged.append(complaint(case, outcome))
        if judged == [None] or len(judged) == 3:
            break
        outcome = bench.run(case)
    if not judged:
        pytest.skip(f"SKIPPED: {case.name} was made to have no stall, and had one five times: the machine is busy elsewhere")
    # As above: two of three runs have to be right.
    assert 2 * judged.count(None) > len(judged), judged


@pytest.mark.parametrize("case", [case for case in TESTED if case.kernel_bar], ids=lambda case: case.name)
def test_kernel_alone_agrees_with_the_truth(bench, case):
    # A batch is ready when the worker wakes its feeder. One that is kept from the CPU or the lock is still awake then: the
    # batch is seen as it leaves, and what it waited for is the worker's.
    outcome = check(lambda: bench.attach(case), KERNEL_ALONE, blurred=(case, ("prep", "transfer")))
    saves(case, outcome, KERNEL_ALONE)
    if case.is_loop:
        assert complaint(case, outcome) is None
