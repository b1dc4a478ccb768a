"""Whatever happens to us, a job computes the same, nothing hangs, and what is lost is counted. `make chaos` does it for longer."""

import concurrent.futures

import pytest
from bed import untouched
from chaos import strike
from faults import FAULTS

STEPS, SEED = 90, 14


@pytest.fixture(scope="module")
def outcomes():
    """Of every fault, some of them beside each other."""
    expected = untouched(STEPS)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return {name: pool.submit(strike, name, SEED, STEPS, expected) for name in FAULTS}


@pytest.mark.parametrize("name", FAULTS)
def test_a_job_computes_the_same_and_what_is_lost_is_counted(outcomes, name):
    outcome = outcomes[name].result()
    if outcome.notes and not outcome.batches:
        pytest.skip(f"SKIPPED: {name}: {outcome.notes[0]}")
    assert outcome.batches == STEPS
    assert outcome.strikes > 0
