"""Truth jobs at reduced length, with wider margins than `make bench-truth`."""

import pytest

from cases import CASES
from verdicts import complaint

# Points of training time by which a cause may be off.
KERNEL_AND_SHIM, KERNEL_ALONE = 4, 6
# Per cent by which the training time may be off: phases are not mixed up.
PHASES = 6

TESTED = [case for case in CASES if case.tested]


def check(found, margin):
    cause, error = found.worst
    assert abs(error) <= margin, f"{cause} is {error:+.1f} points off: {found}"


@pytest.mark.parametrize("case", TESTED, ids=lambda case: case.name)
def test_kernel_and_shim_agree_with_the_truth(bench, case):
    outcome = bench.run(case)
    assert len(outcome.comparisons) == (0 if case.withheld else case.ranks)
    for found in outcome.comparisons:
        check(found, KERNEL_AND_SHIM)
        assert abs(found.phase_error) <= PHASES, found
        if case.hidden_bar:
            assert found.seen_hidden is not None, "no device was watched"
            assert abs(found.seen_hidden - found.true_hidden) <= KERNEL_AND_SHIM
    assert complaint(case, outcome.report) is None


@pytest.mark.parametrize("case", [case for case in TESTED if case.kernel_bar], ids=lambda case: case.name)
def test_kernel_alone_agrees_with_the_truth(bench, case):
    for found in bench.attach(case).comparisons:
        check(found, KERNEL_ALONE)
