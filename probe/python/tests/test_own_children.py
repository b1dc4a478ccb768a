"""A script's handler for SIGCHLD hears of its own children, and not of ours."""

import os
import signal

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope.data.cache.own_children import unheard  # noqa: E402


@pytest.fixture
def heard():
    heard = []
    before = signal.signal(signal.SIGCHLD, lambda number, frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGCHLD, before)


def ended():
    """A child that has ended and that nobody has waited for."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child


def test_ours_is_not_heard(heard):
    with unheard():
        os.waitpid(ended(), 0)
    assert heard == []


def test_the_scripts_own_is_heard_behind_it(heard):
    with unheard():
        own = ended()
        assert heard == []
    assert heard == [signal.SIGCHLD]
    os.waitpid(own, 0)
    os.waitpid(ended(), 0)
    assert len(heard) == 2, "the handler is there again"


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_where_none_is_called_nothing_is_changed(handler):
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        with unheard():
            assert signal.getsignal(signal.SIGCHLD) is handler
    finally:
        signal.signal(signal.SIGCHLD, before)
