"""Containers made of the kernel's namespaces alone, as a runtime makes them of an image and a pod's manifest.

Run as a program this is what becomes a container's first process: `container.py SPECIFICATION WORD…`.
"""

import ctypes
import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 1 << 17, 1 << 25, 1 << 26, 1 << 27
NEWUSER, NEWPID, NEWNET = 1 << 28, 1 << 29, 1 << 30
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
PDEATHSIG, CAPBSET_DROP, NO_NEW_PRIVS = 1, 24, 38
PIVOT_ROOT = {"x86_64": 155}.get(os.uname().machine, 41)
# linux/capability.h, of those that a manifest here names.
CAPABILITIES = {"SETGID": 6, "SETUID": 7, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "PERFMON": 38, "BPF": 39}
# Users of a container with its own.
USERS = 65_536


def unpacked(image, folder):
    """The files of an OCI image in `folder`, each blob of which is what its digest says."""
    with tarfile.open(image) as tar:
        files = {one.name: tar.extractfile(one).read() for one in tar if one.isfile()}

    def blob(entry):
        algorithm, value = entry["digest"].split(":")
        data = files[f"blobs/{algorithm}/{value}"]
        assert (hashlib.new(algorithm, data).hexdigest(), len(data)) == (value, entry["size"])
        return data

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    (layer,) = manifest["layers"]
    data = gzip.decompress(blob(layer))
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(data).hexdigest()]
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        # Pythons of before it extract so anyway.
        tar.extractall(folder, **({"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}))
    return config


class Container:
    """What starts in it begins in namespaces of mounts, network, IPC, host name and control groups of its own."""

    def __init__(self, root, mounts=(), own_pids=True, own_users=None, user=0, capabilities=(), groups=(), environment=None, folder="/", read_only=False):
        """`mounts`: (source, target, writable). `own_users`: the node's number of its user 0. `groups`: folders of control groups."""
        self.specification = {
            "root": str(root),
            "mounts": [(str(source), target, writable) for source, target, writable in mounts],
            "own_pids": own_pids,
            "own_users": own_users,
            "user": user,
            "capabilities": [CAPABILITIES[name] for name in capabilities],
            "groups": [str(group) for group in groups],
            "environment": {"PATH": "/usr/bin:/bin", **(environment or {})},
            "folder": folder,
            "read_only": read_only,
        }

    def start(self, *words, **options):
        return Running(self.specification, words, options)


class Running:
    def __init__(self, specification, words, options):
        self.specification = specification
        reading, writing = os.pipe()
        command = [sys.executable, __file__, json.dumps({**specification, "pid_to": writing}), *words]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[writing], start_new_session=True, **options)
        os.close(writing)
        with open(reading) as pipe:
            # Of its first process, on the node.
            self.pid = int(pipe.read() or 0)

    def run(self, *words):
        """What `words`, started in it as by `kubectl exec`, print."""
        specification = {**self.specification, "pid": self.pid}
        command = [sys.executable, __file__, json.dumps(specification), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def wait(self, timeout=200):
        return self.process.wait(timeout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        # With process numbers of the node's, others go on.
        for group in self.specification["groups"]:
            Path(group, "cgroup.kill").write_text("1")
        self.process.wait()


libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    arguments = [ctypes.c_ulong(one) if isinstance(one, int) else os.fsencode(one) if one is not None else None for one in arguments]
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{tuple(arguments)}: {os.strerror(number)}")


def bind(source, target, writable):
    target = Path(target)
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    call("mount", source, target, None, BIND | REC, None)
    if not writable:
        call("mount", None, target, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV, None)


def mount_all(root, mounts):
    """The root file system with what a runtime mounts in it."""
    call("mount", None, "/", None, REC | PRIVATE, None)
    call("mount", root, root, None, BIND | REC, None)
    for source, target, writable in mounts:
        bind(source, root + target, writable)
    for name in ("proc", "sys", "dev"):
        (Path(root) / name).mkdir(exist_ok=True)
    call("mount", "proc", root + "/proc", "proc", NOSUID | NODEV | NOEXEC, None)
    bind(root + "/proc/sys", root + "/proc/sys", False)
    call("mount", "sysfs", root + "/sys", "sysfs", RDONLY | NOSUID | NODEV | NOEXEC, None)
    call("mount", "tmpfs", root + "/dev", "tmpfs", NOSUID, "mode=755")
    for device in ("null", "zero", "full", "random", "urandom"):
        bind("/dev/" + device, f"{root}/dev/{device}", True)
    (Path(root) / "dev/shm").mkdir()
    call("mount", "tmpfs", root + "/dev/shm", "tmpfs", NOSUID | NODEV, "mode=1777,size=64m")


def enter(specification, words, is_ready, is_mapped):
    root = specification["root"]
    call("unshare", NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWNET)
    mount_all(root, specification["mounts"])
    os.chdir(root)
    call("syscall", PIVOT_ROOT, ".", ".")
    call("umount2", ".", DETACH)
    os.chdir("/")
    if specification["read_only"]:
        call("mount", None, "/", None, BIND | REMOUNT | RDONLY, None)
    if specification["own_users"] is not None:
        call("unshare", NEWUSER)
        os.write(is_ready, b".")
        os.read(is_mapped, 1)
    execute(specification, words)


def join(specification, words):
    pid = specification["pid"]
    for namespace in [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in ("uts", "ipc", "net", "cgroup", "mnt")]:
        call("setns", namespace, 0)
    execute(specification, words)


def execute(specification, words):
    """With no more rights than the container has."""
    user = specification["user"]
    for capability in range(64):
        if capability not in specification["capabilities"]:
            try:
                call("prctl", CAPBSET_DROP, capability, 0, 0, 0)
            except OSError:
                # The kernel knows no further ones.
                break
    call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    call("prctl", PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.umask(0o022)
    os.chdir(specification["folder"])
    os.execve(words[0], words, specification["environment"])


def main():
    specification, words = json.loads(sys.argv[1]), sys.argv[2:]
    if "pid" in specification:
        join(specification, words)
    for group in specification["groups"]:
        Path(group, "cgroup.procs").write_text("0")
    if specification["own_pids"]:
        call("unshare", NEWPID)
    ready, is_ready = os.pipe()
    mapped, is_mapped = os.pipe()
    pid_to, users = specification["pid_to"], specification["own_users"]
    child = os.fork()
    if child == 0:
        try:
            os.close(ready)
            os.close(pid_to)
            enter(specification, words, is_ready, mapped)
        except Exception as error:
            print(f"container: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(125)
    os.close(is_ready)
    os.write(pid_to, str(child).encode())
    os.close(pid_to)
    if users is not None and os.read(ready, 1):
        for ids in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{ids}").write_text(f"0 {users} {USERS}")
        os.write(is_mapped, b".")
    _, status = os.waitpid(child, 0)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


if __name__ == "__main__":
    main()
