"""The files and mounts that a job waited for, beside its own account of it."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run import ROOT, STALLSCOPE, WORK, fresh, new_recording, quiet, report
from storage import forget

SLOWFS = ROOT / "target" / "release" / "slowfs"
# Percent of all waits by which those for a file or mount may be off.
MARGIN = 5
# Percent of all waits of which the kernel side may not know the file: of one whose end the hypervisor did not let it see.
# One of this size is a slice of the throttled disk's, 0.1 s.
UNKNOWN = 25


@pytest.fixture
def slow_folder(tmp_path):
    """A folder on a file system of its own, where each read takes 20 ms."""
    if not shutil.which("fusermount3") or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("SKIPPED: a second slow mount needs fusermount3 and /dev/fuse; `apt-get install fuse3`")
    if not SLOWFS.exists():
        pytest.fail(f"{SLOWFS} is not built; run `make build` first")
    source, point = tmp_path / "source", tmp_path / "slow mount"
    (source / "train").mkdir(parents=True)
    for number in range(40):
        (source / "train" / f"{number:03}.bin").write_bytes(os.urandom(8192))
    point.mkdir()
    server = subprocess.Popen([SLOWFS, source, point, "--mib-per-s", "100", "--latency-ms", "20"])
    while not os.path.ismount(point):
        assert server.poll() is None, "slowfs ended before it was mounted"
        time.sleep(0.02)
    yield point
    subprocess.run(["fusermount3", "-uzq", point], check=False, capture_output=True)
    server.wait(30)


@pytest.fixture
def disk(bench):
    """A folder on the throttled disk, with a file for each way of reading."""
    bench.storage.limit()
    folder = fresh(bench.storage.mount / "files" / "deep" / "er")
    (folder / "direct.bin").write_bytes(os.urandom(6 << 20))
    (folder / "mapped.bin").write_bytes(os.urandom(3 << 20))
    forget(folder)
    bench.storage.limit(read_bytes_s=8 << 20)
    yield folder
    bench.storage.limit()


def read(tasks: list[str], prefix: tuple[str, ...] = ()) -> tuple[dict[str, int], dict]:
    """Runs the reader; its account, and the report of its run."""
    account, recording = WORK / "reader.json", new_recording()
    # What a job does before the kernel programs are loaded nobody sees; the recording is begun after that.
    job = ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.05; done; exec "$@"', recording, *prefix]
    job += [sys.executable, ROOT / "truth" / "reader.py", account, *tasks]
    done = quiet([STALLSCOPE, "run", "--name", "reader", "-o", recording, "--", *job], 5)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(account.read_text()), report(recording)


def wait_ns(found: dict, path: Path) -> int:
    names = {str(path), f"{mount_of(path)}/…/{path.parent.name}/{path.name}"}
    return sum(file["wait_ns"] for file in found["files"] if file["path"] in names)


def agree(found: dict, seen_ns: int, true_ns: int, all_ns: int) -> bool:
    """Whether they are the same within the margin, but for the waits that the report says it knows no file of."""
    unknown_ns = sum(mount["wait_ns"] for mount in found["mounts"] if mount["mount"] == "unknown")
    assert unknown_ns <= UNKNOWN / 100 * all_ns, found["mounts"]
    return -MARGIN / 100 * all_ns - unknown_ns <= seen_ns - true_ns <= MARGIN / 100 * all_ns


def mount_of(path: Path) -> Path:
    return next(folder for folder in [path, *path.parents] if os.path.ismount(folder))


def test_files_and_mounts_agree_with_the_jobs_own_account(disk, slow_folder):
    tasks = [f"direct:{disk}/direct.bin", f"mapped:{disk}/mapped.bin", f"files:{slow_folder}/train"]
    truth, found = read(tasks)
    total = sum(truth.values())
    for mount, fs_type in [(mount_of(disk), "ext4"), (slow_folder, "fuse")]:
        true_ns = sum(ns for path, ns in truth.items() if Path(path).is_relative_to(mount))
        row = next(row for row in found["mounts"] if row["mount"] == str(mount))
        assert row["fs_type"].startswith(fs_type)
        assert agree(found, row["wait_ns"], true_ns, total), (mount, true_ns, total, found["mounts"])
    assert len(found["files"]) > 40
    for name in ["direct.bin", "mapped.bin"]:
        path = disk / name
        assert agree(found, wait_ns(found, path), truth[str(path)], total), (name, truth, found["files"][:5])
    longest = max(truth, key=truth.get)
    assert found["files"][0]["path"] in (longest, f"{mount_of(disk)}/…/er/{Path(longest).name}")
    some = f"{slow_folder}/train/007.bin"
    assert any(file["path"] == some and file["mount"] == str(slow_folder) for file in found["files"]), found["files"]


def test_a_bind_mount_in_a_namespace_of_the_jobs_own_is_named(disk, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    # Mounts are looked up once a second, while there is a process that sees them.
    script = 'mount --bind "$0" "$1" && shift && "$@" && sleep 4'
    prefix = ("unshare", "-m", "sh", "-c", script, disk, inside)
    truth, found = read([f"direct:{inside}/direct.bin"], tuple(map(str, prefix)))
    top = found["files"][0]
    assert top["path"] == str(inside / "direct.bin"), (top, truth)
    assert top["mount"] == str(inside)


def test_files_on_overlay_are_overlays(disk, tmp_path):
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        pytest.skip("SKIPPED: this kernel has no overlay; `modprobe overlay`")
    upper, work, point = [fresh(disk.parent / name) for name in ["upper", "work", "merged"]]
    options = f"lowerdir={disk},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, point], check=True)
    try:
        truth, found = read([f"direct:{point}/direct.bin", f"mapped:{point}/mapped.bin"])
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)
    total = sum(truth.values())
    for path, ns in truth.items():
        assert agree(found, wait_ns(found, Path(path)), ns, total), (path, ns, found["files"][:5])
    assert (found["mounts"][0]["mount"], found["mounts"][0]["fs_type"]) == (str(point), "overlay")


def test_a_file_on_a_mount_that_is_waited_for_has_its_share_in_the_report(disk):
    read([f"direct:{disk}/direct.bin"])
    screen = quiet([STALLSCOPE, "report", WORK / "recording.stall"], 0).stdout
    assert "\nFiles  " in screen and "direct.bin" in screen and f"on {mount_of(disk)} (ext4)" in screen, screen
