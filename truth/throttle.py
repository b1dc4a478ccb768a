"""Read limits of a block device: blkio of cgroup v1, or io.max of cgroup v2 where there is no v1. Needs root."""

import os
from contextlib import suppress
from pathlib import Path

# Where Linux mounts them; v1 limits hold for every process, those of v2 for the members of a group below the root.
BLKIO_V1 = Path("/sys/fs/cgroup/blkio")
CGROUP_V2 = Path("/sys/fs/cgroup")


def unavailable() -> str | None:
    """The reason why reads cannot be limited here, or None when they can."""
    if has_v1():
        return None
    controllers = CGROUP_V2 / "cgroup.controllers"
    if controllers.exists() and "io" in controllers.read_text().split():
        # A container may see the folder but not write there.
        writable = os.access(CGROUP_V2 / "cgroup.subtree_control", os.W_OK)
        return None if writable else f"{CGROUP_V2} cannot be written; run this outside of the container"
    return f"{BLKIO_V1} has no throttle files and {CGROUP_V2} no io controller; mount the blkio cgroup (v1) or cgroup v2"


def has_v1() -> bool:
    return (BLKIO_V1 / "blkio.throttle.read_bps_device").exists()


def limit(device: str, pid: int, read_bytes_s: int, read_iops: int):
    """Sets both limits, 0 being none. Under v2 they hold for `pid` and what it starts from now on. Raises OSError."""
    number = device_number(device)
    if has_v1():
        (BLKIO_V1 / "blkio.throttle.read_bps_device").write_text(f"{number} {read_bytes_s}\n")
        (BLKIO_V1 / "blkio.throttle.read_iops_device").write_text(f"{number} {read_iops}\n")
        return
    (CGROUP_V2 / "cgroup.subtree_control").write_text("+io\n")
    group = group_of(device)
    group.mkdir(exist_ok=True)
    (group / "io.max").write_text(f"{number} rbps={read_bytes_s or 'max'} riops={read_iops or 'max'}\n")
    (group / "cgroup.procs").write_text(f"{pid}\n")


def lift(device: str):
    """Removes the limits, and under v2 their group. Raises OSError."""
    if has_v1():
        limit(device, 0, 0, 0)
        return
    group = group_of(device)
    if not group.exists():
        return
    (group / "io.max").write_text(f"{device_number(device)} rbps=max riops=max\n")
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            (CGROUP_V2 / "cgroup.procs").write_text(f"{pid}\n")
    # One that is just ending keeps the group; unlimited as it is by now, it does no harm.
    with suppress(OSError):
        group.rmdir()


def group_of(device: str) -> Path:
    """One for each device, so that two users of slow storage do not meet."""
    return CGROUP_V2 / f"stallscope-{Path(device).name}"


def device_number(device: str) -> str:
    return Path("/sys/block", Path(device).name, "dev").read_text().strip()
