"""The demo's slow file system shows what is there, slowly, and goes on request."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "slowfs"


@pytest.fixture(scope="module")
def slowfs():
    if not shutil.which("fusermount3"):
        pytest.skip("SKIPPED: there is no fusermount3; `apt-get install fuse3`")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("SKIPPED: /dev/fuse is missing or may not be used; load the fuse module, or run this as root")
    if not PROGRAM.exists():
        pytest.fail(f"{PROGRAM} is not built; run `make build` first")
    return PROGRAM


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "large").write_bytes(os.urandom(700_001))
    (folder / "empty").touch()
    for number in range(300):
        (folder / "train" / f"{number:03}").write_text(str(number))
    (folder / "link").symlink_to("train/large")
    return folder


@pytest.fixture
def mount(slowfs, source, tmp_path):
    point = tmp_path / "mount"
    point.mkdir()
    server = subprocess.Popen([slowfs, source, point, "--mib-per-s", "1000"])
    while not os.path.ismount(point):
        assert server.poll() is None, "slowfs ended before it was mounted"
        time.sleep(0.02)
    yield point, server
    subprocess.run(["fusermount3", "-uzq", point], check=False, capture_output=True)
    server.wait(30)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_file_reads_the_same(mount, source):
    shown = contents(mount[0])
    assert len(shown) == 303
    assert shown == contents(source)


def test_nothing_can_be_written(mount):
    with pytest.raises(OSError, match="Read-only"):
        (mount[0] / "new").touch()


def test_a_missing_file_is_missing(mount):
    with pytest.raises(FileNotFoundError):
        (mount[0] / "train" / "none").read_bytes()


def test_a_signal_unmounts_though_a_file_is_open(mount):
    point, server = mount
    reader = os.open(point / "train" / "large", os.O_RDONLY)
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    assert not os.path.ismount(point)
    # Closing asks the file system that has just gone.
    with contextlib.suppress(OSError):
        os.close(reader)


def test_a_missing_source_is_one_sentence(slowfs, tmp_path):
    done = subprocess.run([slowfs, tmp_path / "none", tmp_path, "--mib-per-s", "1"], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"cannot open the folder {tmp_path / 'none'}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
