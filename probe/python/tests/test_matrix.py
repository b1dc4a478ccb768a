"""Whatever loader is drawn: torch's own, beside it the same one observed, turned and resumable, and ours with and without a
cache. What comes of a setting with torch's loader is right.

STALLSCOPE_MATRIX=1000 tries so many settings, STALLSCOPE_MATRIX_FIRST=5000 begins with another one. What failed names its
number, and the two together run it alone.
"""

import json
import os
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
from collector import PACKAGE, environment, run
from matrix_settings import STREAMS, setting
from turning import old

JOB = Path(__file__).with_name("matrix_job.py")
COUNT = int(os.environ.get("STALLSCOPE_MATRIX", "24"))
FIRST = int(os.environ.get("STALLSCOPE_MATRIX_FIRST", "0"))
PLAIN = ["torch", "torch, undrawn", "positioned", "ours", "ours, other workers", "cached", "cached again"]
TURNED = ["turned prefetch", "turned workers", "ours, turned"]


@lru_cache(None)
def outcomes(python, folder):
    """Number -> variant -> what it gave. The observed jobs run beside the others, and share the pool with them."""
    # Of an old torch a part: what it does differently it does in each setting.
    count = -(-COUNT // 2) if old(python) else COUNT
    own = {"PYTHONPATH": str(PACKAGE), "STALLSCOPE_RUNTIME_DIR": os.path.join(folder, "run")}
    command = [python, str(JOB), folder, str(FIRST), str(count)]
    with open(os.path.join(folder, "out"), "w+") as out, open(os.path.join(folder, "err"), "w+") as err:
        job = subprocess.Popen([*command, *PLAIN], env=environment(None, **own), stdout=out, stderr=err)
        try:
            path = os.pathsep.join([environment("x")["PYTHONPATH"], str(PACKAGE)])
            observed = run([*command, *TURNED], limit_s=240 + 10 * count, **{**own, "PYTHONPATH": path})
            assert job.wait() == 0, Path(err.name).read_text()
        finally:
            if job.poll() is None:
                job.kill()
        assert observed.code == 0, observed.err
        plain = Path(out.name).read_text()
    outcome = {}
    for line in [*plain.splitlines(), *(line for line in observed.out.splitlines() if line.startswith('{"'))]:
        one = json.loads(line)
        outcome.setdefault(one["number"], {}).update(one["got"])
    assert sorted(outcome) == list(range(FIRST, FIRST + count))
    return outcome


@pytest.fixture(scope="module")
def outcome(python, tmp_path_factory):
    return outcomes(python, str(tmp_path_factory.mktemp("matrix")))


def draws_while_asked(given):
    """Whether the sampler draws from the process's generators in mid-epoch, so that the order depends on how far ahead of
    training's own draws it is asked: on workers and prefetch, with torch's loader, too."""
    return given["order"] in ("drawing", "drawing-batches")


def is_left_early(given):
    return bool(given["broken"]) or any(plan["stop"] is not None or plan["look"] for plan in given["epochs"])


def undrawn(given, result):
    """Without what was drawn for samples."""
    return {**result, "events": [event[:3] if event[0] in ("batch", "look") else event for event in result["events"]]}


def first_difference(one, other):
    """Of two results, in words; an empty string where there is none."""
    for at, pair in enumerate(zip([*one["events"], None], [*other["events"], None])):
        if pair[0] != pair[1]:
            return f"event {at} is {pair[1]}, not {pair[0]}"
    for name in ("states", "training"):
        if one[name] != other[name]:
            return f"{name}: {other[name]}, not {one[name]}"
    return ""


def all_alike(outcome, name, expected, seen=lambda given, result: result, applies=lambda given: True):
    """That `name` gave what `expected(setting)`, another variant's name, gave, as far as `seen(setting, result)` looks."""
    wrong, tried = [], 0
    for number, got in outcome.items():
        given = setting(number)
        if name not in got or not applies(given):
            continue
        tried += 1
        difference = first_difference(seen(given, got[expected(given)]), seen(given, got[name]))
        if difference:
            wrong.append(f"STALLSCOPE_MATRIX=1 STALLSCOPE_MATRIX_FIRST={number}: {name}: {difference}\n    in {given}")
    assert not wrong, f"{len(wrong)} of {tried} settings:\n" + "\n".join(wrong)
    assert tried or COUNT < 10


def torchs(given):
    return "torch"


def has_own_draws(given):
    """Whether augmentation belongs to the sample in our loader."""
    return given["kind"] not in STREAMS


def test_torchs_loader_made_resumable_gives_what_it_gave(outcome):
    all_alike(outcome, "positioned", torchs)


def test_our_loader_gives_torchs_order_contents_and_errors_and_leaves_training_its_draws(outcome):
    def expected(given):
        return "torch, undrawn" if given["workers"] == 0 and given["drawing"] else "torch"

    all_alike(outcome, "ours", expected, undrawn, has_own_draws)


def test_our_loader_of_a_stream_is_torchs(outcome):
    all_alike(outcome, "ours", torchs, applies=lambda given: not has_own_draws(given))


def test_augmentation_is_the_same_with_other_workers(outcome):
    def applies(given):
        # With workers a sampler is begun and asked ahead, with torch's loader, too.
        ahead = draws_while_asked(given) or is_left_early(given)
        return has_own_draws(given) and not ahead and given["init"] != "tags" and given["collate"] != "noisy"

    def seen(given, result):
        # Which process met an error is not the sample's own affair.
        events = [["error"] if event[0] == "error" else event for event in result["events"]]
        return {**result, "events": events}

    all_alike(outcome, "ours, other workers", lambda given: "ours", seen, applies)


@pytest.mark.parametrize("name", ["cached", "cached again"])
def test_a_cache_changes_nothing(outcome, name):
    all_alike(outcome, name, lambda given: "ours")
    hits = sum(got[name]["figures"].get("hits", 0) for got in outcome.values() if "figures" in got[name])
    assert hits > 0 or COUNT < 10


def left_early(given, result):
    """Without draws where workers that stay had made batches that nobody took: how many is the prefetch's affair."""
    return undrawn(given, result) if is_left_early(given) and given["persistent"] else result


def test_prefetch_that_changes_in_mid_epoch_changes_nothing_at_all(outcome):
    all_alike(outcome, "turned prefetch", torchs, left_early)


def test_workers_that_change_in_mid_epoch_change_only_what_they_draw_themselves(outcome):
    all_alike(outcome, "turned workers", torchs, undrawn)
    assert sum(got["turned workers"]["turned"] for got in outcome.values() if "turned workers" in got) or COUNT < 10


def test_our_loader_gives_the_same_where_its_workers_change(outcome):
    def seen(given, result):
        return result if has_own_draws(given) else left_early(given, result)

    all_alike(outcome, "ours, turned", lambda given: "ours", seen)
