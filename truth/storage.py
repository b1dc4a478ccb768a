"""Storage that is exactly as slow as asked: ext4 on a loop device with limited reads. Needs root and cgroups.

As a program: `storage.py check|up|limit|down --image FILE --mount DIR [--size-mb N] [--read-mb-s N]
[--read-iops N]`, and `storage.py forget --mount DIR`, which drops a folder's cached pages.
What an earlier, killed user left mounted is tidied up by the next `up`.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import throttle


class StorageError(Exception):
    """One sentence that names what cannot be had and the way out."""


def unavailable() -> str | None:
    """The reason why slow storage cannot be had here, or None when it can."""
    if os.geteuid() != 0:
        return "throttled storage needs root (loop device and cgroup); run this as root"
    if not Path("/dev/loop-control").exists():
        return "there is no /dev/loop-control; load the loop module"
    return throttle.unavailable()


class SlowStorage:
    """A mounted file system on `mount`, kept in `image`, whose reads obey the limits; a context manager.

    The image outlives the mount, so that a data set made once is found again.
    """

    def __init__(self, image: Path, mount: Path, size_mb: int = 1024):
        self.image, self.mount, self.size_mb = Path(image), Path(mount), size_mb

    def __enter__(self) -> "SlowStorage":
        self.up()
        return self

    def __exit__(self, *_):
        self.down()

    def up(self):
        """Mounts, unthrottled. Raises StorageError."""
        if reason := unavailable():
            raise StorageError(reason)
        self.down()
        self.image.parent.mkdir(parents=True, exist_ok=True)
        self.mount.mkdir(parents=True, exist_ok=True)
        if not self.image.exists():
            partial = self.image.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            with open(partial, "wb") as file:
                file.truncate(self.size_mb << 20)
            call("mkfs.ext4", "-q", "-F", "-m", "0", partial)
            partial.rename(self.image)
        device = call("losetup", "--find", "--show", self.image)
        try:
            call("mount", "-o", "noatime", device, self.mount)
        except StorageError:
            call("losetup", "-d", device)
            raise

    def limit(self, read_bytes_s: int = 0, read_iops: int = 0, pid: int | None = None):
        """Sets both limits, 0 being none, for `pid` (this process) and its later children.

        Raises StorageError when not mounted, OSError when the kernel refuses.
        """
        devices = self.devices()
        if not devices:
            raise StorageError(f"{self.mount} is not mounted; call up() first")
        for device in devices:
            throttle.limit(device, pid or os.getpid(), read_bytes_s, read_iops)

    def devices(self) -> list[str]:
        if not self.image.exists():
            return []
        return [line.split(":")[0] for line in call("losetup", "-j", self.image).splitlines()]

    def down(self):
        """Unmounts and detaches whatever is there; nothing there is fine."""
        while os.path.ismount(self.mount):
            try:
                call("umount", self.mount)
            except StorageError:
                call("umount", "--lazy", self.mount)
        for device in self.devices():
            throttle.lift(device)
            call("losetup", "-d", device)


def forget(folder: Path):
    """Drops the cached pages of every file under `folder`, so that the next reads meet the device."""
    os.sync()
    for parent, _, names in os.walk(folder):
        for name in names:
            fd = os.open(os.path.join(parent, name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def call(*command) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StorageError(f"`{' '.join(map(str, command))}` failed: {done.stderr.strip()}")
    return done.stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["check", "up", "limit", "down", "forget"])
    parser.add_argument("--image", type=Path, default=Path("storage.img"))
    parser.add_argument("--mount", type=Path, default=Path("storage"))
    parser.add_argument("--size-mb", type=int, default=1024)
    parser.add_argument("--read-mb-s", type=float, default=0)
    parser.add_argument("--read-iops", type=int, default=0)
    flags = parser.parse_args()
    storage = SlowStorage(flags.image, flags.mount, flags.size_mb)
    try:
        if flags.verb == "check":
            if reason := unavailable():
                sys.exit(reason)
        elif flags.verb == "up":
            storage.up()
        elif flags.verb == "limit":
            # The script that called is whose job is to be slow.
            storage.limit(int(flags.read_mb_s * (1 << 20)), flags.read_iops, os.getppid())
        elif flags.verb == "down":
            storage.down()
        else:
            forget(flags.mount)
    except (StorageError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
