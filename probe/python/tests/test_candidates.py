"""A worker that is about to be added, and is sent away before it says that it is ready."""

import multiprocessing

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope._hooks import added_workers, candidates  # noqa: E402


def test_it_leaves_nothing_in_the_jobs_log(capfd):
    context = multiprocessing.get_context("fork")
    reports, teller = context.Pipe(duplex=False)
    reports.close()
    process = context.Process(target=candidates._enter, args=("torch.utils.data._utils.worker", {}, teller, None, None, ((), ())))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert capfd.readouterr().err == ""


class Interrupted:
    """A process of which the first join is interrupted."""

    def __init__(self):
        self.joins = 0

    def join(self, _timeout):
        self.joins += 1
        if self.joins == 1:
            raise KeyboardInterrupt

    def is_alive(self):
        return self.joins < 2


def test_an_interrupt_while_workers_end_leaves_none_unjoined():
    workers = added_workers.WorkerSet(None, None)
    first, second = Interrupted(), Interrupted()
    second.joins = 1
    queue = multiprocessing.get_context("fork").Queue()
    workers.leaving = [(first, queue), (second, queue)]
    with pytest.raises(KeyboardInterrupt):
        workers.end()
    assert not first.is_alive() and not second.is_alive() and workers.leaving == []
