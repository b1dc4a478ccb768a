"""What a cache's budget may be, and how a wrong one is refused."""

import json
import subprocess
import sys

import pytest
from collector import PACKAGE, environment

ASK = """
import json, sys
import stallscope
for value in json.loads(sys.argv[1]):
    try:
        loader = stallscope.DataLoader([1, 2, 3], cache=value)
        print(json.dumps(loader._budget_bytes))
    except ValueError as error:
        print(json.dumps(str(error)))
"""


def asked(*values):
    env = environment(None, PYTHONPATH=str(PACKAGE))
    command = [sys.executable, "-c", ASK, json.dumps(values)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return dict(zip(values, map(json.loads, done.stdout.splitlines())))


def test_bytes_and_units():
    assert asked(4096, "4096", "8KiB", "1.5 MiB", "2MB", "3 kb", "1mib") == {
        4096: 4096,
        "4096": 4096,
        "8KiB": 8192,
        "1.5 MiB": 3 << 19,
        "2MB": 2_000_000,
        "3 kb": 3000,
        "1mib": 1 << 20,
    }


@pytest.fixture(scope="module")
def refused():
    return asked("", "GiB", "40%", "8 bananas", "-1", "1e9", 0, -5, 1.5, True, "0GiB", "900TiB")


def test_what_is_wrong_is_refused_in_one_sentence(refused):
    for value, message in refused.items():
        assert message.startswith(f"cache={value!r}: ") and len(message.splitlines()) == 1, message


@pytest.mark.parametrize(
    "value,why",
    [("40%", 'a string such as "8GiB"'), (1.5, "as a whole number"), (True, "as a whole number"), (0, "has to hold something"),
     ("900TiB", "GiB of memory for this job; give less")],
)  # fmt: skip
def test_and_the_way_out(refused, value, why):
    assert why in refused[value]
