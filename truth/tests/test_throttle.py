"""Read limits under cgroup v2, in a folder that plays the kernel's."""

import pytest
import throttle


@pytest.fixture
def v2(tmp_path, monkeypatch):
    (tmp_path / "cgroup.controllers").write_text("cpu io memory\n")
    (tmp_path / "cgroup.subtree_control").touch()
    monkeypatch.setattr(throttle, "CGROUP_V2", tmp_path)
    monkeypatch.setattr(throttle, "BLKIO_V1", tmp_path / "blkio")
    monkeypatch.setattr(throttle, "device_number", lambda device: "7:3")
    return tmp_path


def test_v2_does_where_there_is_no_v1(v2):
    assert throttle.unavailable() is None
    (v2 / "cgroup.controllers").write_text("cpu memory\n")
    assert "io controller" in throttle.unavailable()
    (v2 / "cgroup.controllers").unlink()
    assert "io controller" in throttle.unavailable()


def test_a_v2_that_cannot_be_written_is_named(v2):
    (v2 / "cgroup.subtree_control").unlink()
    assert "cannot be written" in throttle.unavailable()


def test_limits_hold_for_a_group_that_the_process_joins(v2):
    throttle.limit("/dev/loop3", 42, 1 << 20, 0)
    assert (v2 / "cgroup.subtree_control").read_text() == "+io\n"
    assert (v2 / "stallscope-loop3" / "io.max").read_text() == "7:3 rbps=1048576 riops=max\n"
    assert (v2 / "stallscope-loop3" / "cgroup.procs").read_text() == "42\n"


def test_lifted_limits_let_the_members_go(v2):
    throttle.lift("/dev/loop3")
    throttle.limit("/dev/loop3", 42, 0, 100)
    throttle.lift("/dev/loop3")
    assert (v2 / "stallscope-loop3" / "io.max").read_text() == "7:3 rbps=max riops=max\n"
    assert (v2 / "cgroup.procs").read_text() == "42\n"
