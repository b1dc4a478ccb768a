"""The slow storage: what it keeps, what it leaves behind."""

import os
import subprocess

import pytest
import throttle
from storage import SlowStorage, StorageError, forget, unavailable


@pytest.fixture
def storage(tmp_path):
    if reason := unavailable():
        pytest.skip(reason)
    one = SlowStorage(tmp_path / "image", tmp_path / "mount", size_mb=16)
    yield one
    one.down()


def test_files_outlive_the_mount(storage):
    with storage:
        (storage.mount / "kept").write_text("here")
    assert not os.path.ismount(storage.mount)
    assert storage.devices() == []
    with storage:
        assert (storage.mount / "kept").read_text() == "here"


def test_what_a_killed_user_left_is_tidied_up(storage):
    storage.up()
    storage.limit(1 << 20, 100)
    # As if that process had been killed: nobody called down().
    again = SlowStorage(storage.image, storage.mount)
    again.up()
    assert len(again.devices()) == 1
    again.down()
    assert storage.devices() == []


def test_limits_are_set_and_lifted(storage):
    def limits():
        if throttle.has_v1():
            return (throttle.BLKIO_V1 / "blkio.throttle.read_bps_device").read_text()
        return "".join(path.read_text() for path in throttle.CGROUP_V2.glob("stallscope-*/io.max")).replace(" rbps=", " ")

    with storage:
        storage.limit(7_654_321)
        assert " 7654321" in limits()
        storage.limit()
        assert " 7654321" not in limits()


def test_forgotten_files_are_read_from_the_device_again(storage):
    def read_bytes():
        return int(open("/proc/self/io").read().split("read_bytes: ")[1].split()[0])

    with storage:
        (storage.mount / "file").write_bytes(os.urandom(1 << 20))
        forget(storage.mount)
        before = read_bytes()
        (storage.mount / "file").read_bytes()
        assert read_bytes() - before >= 1 << 20


def test_limits_need_a_mount(tmp_path):
    with pytest.raises(StorageError, match="not mounted"):
        SlowStorage(tmp_path / "image", tmp_path / "mount").limit(1)


def test_a_failing_command_is_named(tmp_path):
    if unavailable():
        pytest.skip(unavailable())
    not_an_image = tmp_path / "image"
    not_an_image.write_bytes(bytes(1 << 20))
    storage = SlowStorage(not_an_image, tmp_path / "mount")
    with pytest.raises(StorageError, match="mount"):
        storage.up()
    assert subprocess.run(["losetup", "-j", not_an_image], capture_output=True, check=True).stdout == b""
