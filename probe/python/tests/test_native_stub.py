"""`_native.pyi` says what the native module that was built has: names, arguments, defaults."""

import os
import subprocess
from pathlib import Path

import pytest
from collector import PACKAGE
from conftest import needs

STUB = Path(__file__).resolve().parents[1] / "stallscope" / "_native.pyi"
# What the stub is right not to have, or to have: PyO3 writes __all__, and has __getattr__ where nobody can see it.
ALLOWED = """
stallscope._native.__all__
stallscope._native.DataQueue.__getattr__
stallscope._native.IndexQueue.__getattr__
stallscope._native.Open.__getattr__
"""


def stubtest(stub, folder):
    """Of a package with this stub and the module that was built, and nothing else: all of torch is behind the rest."""
    package = folder / "stallscope"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_native.pyi").write_text(stub)
    os.symlink(PACKAGE / "stallscope" / "_native.abi3.so", package / "_native.abi3.so")
    allowed = folder / "allowed"
    allowed.write_text(ALLOWED)
    command = [needs("mypy"), "-m", "mypy.stubtest", "stallscope._native", "--allowlist", str(allowed)]
    env = {**os.environ, "PYTHONPATH": str(folder), "MYPYPATH": str(folder)}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)


def test_the_stub_is_that_of_the_module(tmp_path):
    done = stubtest(STUB.read_text(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "right, wrong",
    [("def bye()", "def good_bye()"), ("count: int) -> int", "number: int) -> int"), ("tag: int | None = None", "tag: int")],
    ids=["a name", "an argument", "a default"],
)
def test_a_stub_that_differs_is_found(right, wrong, tmp_path):
    stub = STUB.read_text()
    assert right in stub
    done = stubtest(stub.replace(right, wrong), tmp_path)
    assert done.returncode == 1 and "error: stallscope._native." in done.stdout, done.stdout + done.stderr
