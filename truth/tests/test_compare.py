"""The comparison itself: a recording that says the truth is not off, one that does not is."""

import sqlite3

import pytest
from account import CAUSES, Account
from compare import NotComparable, compare
from log import Did, Mark

STEPS = 5


@pytest.fixture
def account():
    trainer = [Mark(0, 0, 0, Did.BEGIN, 0), Mark(1, 0, 0, Did.RANK, 0)]
    worker = [Mark(0, 0, 0, Did.BEGIN, 0)]
    for step in range(STEPS):
        at = 1000 * step
        trainer += [Mark(at + 300, 0, 0, Did.ENTER, 0), Mark(at + 1000, 0, step, Did.EXIT, 0)]
        worker += [Mark(at + 800, 0, 0, Did.FETCH, 0), Mark(at + 900, 0, step, Did.READY, 0)]
    return Account({(1, 1): trainer, (2, 2): worker})


def record(path, **causes):
    columns = ", ".join(f"{cause}_ns INTEGER" for cause in CAUSES)
    with sqlite3.connect(path) as file:
        file.execute(f"CREATE TABLE step (rank, phase, idx, start_ns, end_ns, hidden_ns, {columns})")
        for step in range(1, STEPS):
            row = [0, "training", step, 1000 * step, 1000 * step + 1000, None, *(causes.get(one, 0) for one in CAUSES)]
            file.execute(f"INSERT INTO step VALUES ({', '.join('?' * len(row))})", row)
    file.close()
    return path


def test_the_truth_is_not_off(tmp_path, account):
    [found] = compare(record(tmp_path / "a", compute=300, fetch=500, transfer=200), account)
    assert found.worst[1] == 0
    assert found.phase_error == 0
    assert found.steps == STEPS - 1


def test_the_furthest_cause_is_named(tmp_path, account):
    [found] = compare(record(tmp_path / "a", compute=300, fetch=420, prep=80, transfer=200), account)
    assert abs(found.worst[1]) == pytest.approx(8)
    assert found.worst[0] in ("fetch", "prep")


def test_what_is_not_known_is_blamed_on_nothing(tmp_path, account):
    [found] = compare(record(tmp_path / "a", compute=300, unknown=500, transfer=200), account)
    assert found.worst_blamed[1] == 0
    [found] = compare(record(tmp_path / "b", compute=350, unknown=450, transfer=200), account)
    assert found.worst_blamed == ("compute", pytest.approx(5))


def test_causes_that_do_not_add_up_are_refused(tmp_path, account):
    with pytest.raises(NotComparable, match="add up"):
        compare(record(tmp_path / "a", compute=300, fetch=500), account)
