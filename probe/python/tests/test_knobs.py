"""A process shows its knobs, takes up what is asked for and says how it stands."""

import sys
import textwrap
import time

import pytest
from collector import PACKAGE, Collector, environment, start

# Turns like a loader would: looks once a step, applies what it can.
JOB = """
import json, os, sys, time
from stallscope import _native
_native.configure(os.environ["STALLSCOPE_SOCKET"], json.dumps({{"kind": "trainer"}}), 64)
_native.poll()
{body}
"""


@pytest.fixture
def job(tmp_path):
    """Starts a process with this body and a collector, ends both."""
    started = []

    def begin(body, collector=None):
        collector = collector or Collector()
        path = tmp_path / "job.py"
        path.write_text(JOB.format(body=textwrap.dedent(body)))
        env = environment(None, STALLSCOPE_SOCKET=collector.path)
        env["PYTHONPATH"] = str(PACKAGE)
        process = start([sys.executable, str(path)], env)
        started.append((process, collector))
        return process, collector

    yield begin
    for process, collector in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
        collector.close()


def until(collector, ready, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < deadline, "never happened"
        collector.serve_once()


def the(collector):
    (process,) = collector.processes
    return process


LOOP = """
depth = _native.knob("prefetch", "batches", 4, 1, 64, 0)
whole = _native.knob("interval", "ns", 5, 0, 10)
blind = _native.knob_unavailable("workers", "workers", 2, 0, "The loader has no workers.")
asked = []
while not os.path.exists({stop!r}):
    _native.poll()
    if _native.turned():
        for slot, value in _native.requests():
            asked.append(value)
            if slot == whole:
                _native.answer(slot, 5, "refused", "The job keeps its interval.")
            else:
                _native.answer(slot, value, "applied", "")
    time.sleep(0.001)
print(asked)
"""


def test_what_is_asked_for_is_applied_or_refused_with_words(job, tmp_path):
    stop = str(tmp_path / "stop")
    process, collector = job(LOOP.format(stop=stop))
    until(collector, lambda: collector.processes and len(the(collector).knobs()) == 3)
    shim = the(collector)
    assert shim.standing("prefetch", 0) == (4, "own")
    shim.ask("prefetch", 32, 0)
    until(collector, lambda: shim.standing("prefetch", 0) == (32, "applied"))
    shim.ask("interval", 7)
    until(collector, lambda: shim.standing("interval") == (5, "refused"))
    # The words were there before the answer.
    collector.serve_once(0)
    assert shim.knobs()["interval", None]["reason"] == "The job keeps its interval."
    blind = shim.knobs()["workers", 0]
    assert (blind["available"], blind["value"], blind["reason"]) == (False, 2, "The loader has no workers.")
    # Out of bounds reaches nobody.
    shim.ask("prefetch", 65, 0)
    until(collector, lambda: shim.standing("prefetch", 0) == (32, "refused"))
    collector.serve_once(0)
    assert "1 to 64" in shim.knobs()["prefetch", 0]["reason"]
    open(stop, "w").close()
    assert process.wait(60) == 0
    assert process.stdout.read() == "[32, 7]\n"


def test_a_later_collector_finds_page_and_knobs_as_they_stand(job, tmp_path):
    stop = str(tmp_path / "stop")
    process, collector = job(LOOP.format(stop=stop))
    until(collector, lambda: collector.processes and len(the(collector).knobs()) == 3)
    the(collector).ask("prefetch", 9, 0)
    until(collector, lambda: the(collector).standing("prefetch", 0) == (9, "applied"))
    the(collector).connection.close()
    collector.processes.clear()
    until(collector, lambda: collector.processes and len(the(collector).knobs()) == 3)
    assert the(collector).standing("prefetch", 0) == (9, "applied")
    the(collector).ask("prefetch", 3, 0)
    until(collector, lambda: the(collector).standing("prefetch", 0) == (3, "applied"))
    open(stop, "w").close()
    assert process.wait(60) == 0


def test_a_job_that_closes_all_descriptors_hands_over_another_page_with_the_same_knobs(job, tmp_path):
    stop = str(tmp_path / "stop")
    closing = str(tmp_path / "close")
    body = LOOP.format(stop=stop).replace(
        "    _native.poll()",
        f"""\
    if os.path.exists({closing!r}):
        os.closerange(3, 4096)
        os.unlink({closing!r})
    _native.poll()""",
    )
    process, collector = job(body)
    until(collector, lambda: collector.processes and len(the(collector).knobs()) == 3)
    the(collector).ask("prefetch", 9, 0)
    until(collector, lambda: the(collector).standing("prefetch", 0) == (9, "applied"))
    open(closing, "w").close()
    until(collector, lambda: len(collector.processes) == 2 and len(collector.processes[1].knobs()) == 3)
    later = collector.processes[1]
    assert later.standing("prefetch", 0) == (9, "applied")
    later.ask("prefetch", 11, 0)
    until(collector, lambda: later.standing("prefetch", 0) == (11, "applied"))
    open(stop, "w").close()
    assert process.wait(60) == 0


def test_a_request_for_a_knob_that_is_gone_does_not_reach_the_next_one_in_its_place(job, tmp_path):
    again = str(tmp_path / "again")
    process, collector = job(
        f"""
        first = _native.knob("prefetch", "batches", 4, 1, 64, 0)
        while not os.path.exists({again!r}):
            time.sleep(0.001)
        rang = _native.turned()
        _native.knob_gone(first)
        second = _native.knob("workers", "workers", 2, 1, 64, 1)
        print(first == second, rang, _native.requests())
        """
    )
    until(collector, lambda: collector.processes and the(collector).knobs())
    the(collector).ask("prefetch", 32, 0)
    open(again, "w").close()
    until(collector, lambda: process.poll() is not None)
    assert process.stdout.read() == "True True []\n"
    assert list(the(collector).knobs()) == [("workers", 1)]
    assert the(collector).standing("workers", 1) == (2, "own")


def test_what_the_script_changes_itself_is_its_own_again(job):
    process, collector = job(
        """
        slot = _native.knob("prefetch", "batches", 4, 1, 64, 0)
        while not _native.turned():
            time.sleep(0.001)
        ((slot, value),) = _native.requests()
        print(_native.turned(), _native.requests() == [(slot, value)])
        _native.answer(slot, value, "applied", "")
        _native.knob_is(slot, 6, 2, 32)
        again = _native.knob("prefetch", "batches", 6, 2, 32, 0)
        print(again == slot, _native.requests(), flush=True)
        time.sleep(600)
        """
    )
    until(collector, lambda: collector.processes and the(collector).knobs())
    the(collector).ask("prefetch", 20, 0)
    until(collector, lambda: the(collector).standing("prefetch", 0) == (6, "own"))
    assert process.stdout.readline() == "False True\n"
    assert process.stdout.readline() == "True []\n"
    knob = the(collector).knobs()["prefetch", 0]
    assert (knob["min"], knob["max"], knob["initial"]) == (2, 32, 4)


def test_a_forked_child_has_no_page(job):
    process, collector = job(
        """
        slot = _native.knob("prefetch", "batches", 4, 1, 64, 0)
        while not _native.turned():
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            _native.answer(slot, 7, "applied", "")
            _native.knob_is(slot, 8, 1, 64)
            os._exit(0 if not _native.turned() and _native.requests() == [] else 1)
        print(os.waitpid(child, 0)[1], _native.turned(), len(_native.requests()))
        """
    )
    until(collector, lambda: collector.processes and the(collector).knobs())
    the(collector).ask("prefetch", 20, 0)
    until(collector, lambda: process.poll() is not None)
    assert process.stdout.read() == "0 True 1\n"


def test_more_knobs_than_fit_are_shown_and_a_shim_that_is_off_shows_none(job):
    process, collector = job(
        """
        slots = [_native.knob("depth", "batches", 1, 0, 9, n) for n in range(65)]
        print(len(set(slots)))
        _native.disable("Enough.")
        print(_native.knob("late", "batches", 1, 0, 9), _native.requests(), _native.turned())
        _native.knob_gone(0)
        _native.answer(0, 1, "applied", "")
        """
    )
    until(collector, lambda: process.poll() is not None)
    while collector.serve_once(0.1):
        pass
    assert process.stdout.read() == "65\n4294967295 [] False\n"
    knobs = the(collector).knobs()
    assert len(knobs) == 65 and not knobs["depth", 64]["available"]
    assert "as many knobs" in knobs["depth", 64]["reason"]
