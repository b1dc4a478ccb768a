"""A worker that is about to be added, and is sent away before it says that it is ready."""

import multiprocessing

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope._hooks import candidates  # noqa: E402


def test_it_leaves_nothing_in_the_jobs_log(capfd):
    context = multiprocessing.get_context("fork")
    told, teller = context.Pipe(duplex=False)
    told.close()
    process = context.Process(target=candidates._enter, args=("torch.utils.data._utils.worker", {}, teller, None, None))
    process.start()
    process.join()
    assert process.exitcode == 1
    assert capfd.readouterr().err == ""
