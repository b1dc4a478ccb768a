"""The program that `make build` made, its image, and what tests of the node ask for."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import container
import pytest

CONTRIB = Path(__file__).resolve().parents[1]
ROOT = CONTRIB.parent
PROGRAM = Path(os.environ.get("STALLSCOPE_PROGRAM", ROOT / "target/release/stallscope"))


def skipped(why):
    warnings.warn(f"SKIPPED: {why}", stacklevel=2)
    pytest.skip(f"SKIPPED: {why}")


def until(what, ready, patience_s=200):
    """What `ready` gives once it gives something; the limit only ends a test that would hang."""
    end = time.monotonic() + patience_s
    while not (found := ready()):
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="session")
def program():
    if not PROGRAM.exists():
        skipped(f"{PROGRAM} is not built; `make build` does")
    return PROGRAM


@pytest.fixture
def as_root():
    if os.geteuid() != 0:
        skipped("it takes root: other users, namespaces and kernel evidence")


@pytest.fixture
def folder():
    """With a short path, as one of a socket has 107 bytes at most; all may pass through it."""
    made = Path(tempfile.mkdtemp(prefix="ss-contrib-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="session")
def image(program, tmp_path_factory):
    """The image's file, and what its maker printed."""
    file = tmp_path_factory.mktemp("image") / "stallscope.tar"
    made = subprocess.run([sys.executable, CONTRIB / "container/image.py", "--program", program, "-o", file], capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")
    return file, made.stdout


@pytest.fixture(scope="session")
def files_of_image(image, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    folder.chmod(0o755)
    container.unpacked(image[0], folder)
    return folder


@pytest.fixture
def groups():
    """Makes control groups by their path; they go after the test, when their processes have."""
    made = []

    def make(path):
        group = Path(_groups()) / f"ss-contrib-{os.getpid()}" / path
        missing = [parent for parent in [group, *group.parents] if not parent.exists()]
        try:
            group.mkdir(parents=True)
        except OSError as error:
            skipped(f"no control group can be made here ({error})")
        made.extend(missing)
        return group

    yield make
    for group in sorted(set(made), reverse=True):
        until(f"{group} is empty", lambda: "populated 0" in (group / "cgroup.events").read_text())
        group.rmdir()


def _groups():
    """Where this process may make control groups of version 2."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    mounted = next((line[1] for line in lines if line[2] == "cgroup2"), None)
    if mounted is None:
        skipped("no control groups of version 2 are mounted here")
    own = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(line[len("0::") :] for line in own if line.startswith("0::"))
    return mounted + own
