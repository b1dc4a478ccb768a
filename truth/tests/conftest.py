"""What the truth tests share: the modules of truth/, and the storage while there is root."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from run import STALLSCOPE, Bench  # noqa: E402
from storage import unavailable  # noqa: E402

SECONDS = 4


@pytest.fixture(scope="session")
def bench():
    if reason := unavailable():
        pytest.skip(f"truth jobs need slow storage and kernel evidence: {reason}")
    if not STALLSCOPE.exists():
        pytest.fail(f"{STALLSCOPE} is not built; run `make build` first")
    with Bench(SECONDS) as ready:
        yield ready
