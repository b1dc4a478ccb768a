"""When the demo says that its figures are no example."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from busy import complaint, idle_and_all, look  # noqa: E402

STAT = "cpu  100 20 30 4000 50 6 7 8 90 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


def test_waiting_for_a_disk_is_idle_and_a_guests_time_is_counted_once():
    assert idle_and_all(STAT) == (4050, 4221)


@pytest.mark.parametrize("taken, cpus, is_busy", [(0, 2, False), (5, 2, False), (25, 2, True), (25, 4, False),
                                                  (50, 4, True), (90, 64, False), (99, 64, True)])  # fmt: skip
def test_a_complaint_where_too_little_is_left_for_the_job(taken, cpus, is_busy):
    sentence = complaint((1000, 5000), (1000 + 100 - taken, 5100), cpus)
    assert (sentence is not None) == is_busy
    if sentence:
        assert f"{taken}% of this machine's {cpus} CPUs" in sentence


def test_no_time_between_two_looks_says_nothing():
    assert complaint((10, 20), (10, 20), 2) is None


def test_this_machine_can_be_looked_at():
    idle, total = look()
    assert 0 <= idle <= total and os.cpu_count() >= 1
