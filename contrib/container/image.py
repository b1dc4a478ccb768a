#!/usr/bin/env python3
"""Makes a container image of the program, and prints what is in it. Takes no container tool and no root.

The image is the program, the libraries that it is linked with, and what these read. It is written as an OCI image layout in a tar file:
`podman load -i FILE`, `ctr -n k8s.io images import FILE`, `skopeo copy oci-archive:FILE docker://…`. The same program gives the same
bytes.
"""

import argparse
import gzip
import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "usr/bin/stallscope"
POLICY = "etc/stallscope/stallscope.toml"
# Nobody else's: pods run as small numbers, and as 65532 and 65534 where an image has no user of its own.
UID = 59401
# What a C library asks for the names of users. Jobs' users are numbers here.
TEXTS = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\nstallscope:x:{UID}:{UID}::/:/sbin/nologin\nnobody:x:65534:65534::/:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nstallscope:x:{UID}:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\n",
}
# Where something is mounted, also if nothing else may be made: folders and their modes. Users pass through the first two, to its
# sockets and to their recordings, and list neither.
FOLDERS = {"run/stallscope": 0o711, "var/lib/stallscope": 0o711, "tmp": 0o1777, "proc": 0o555, "sys": 0o555, "dev": 0o755}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
TYPE = "application/vnd.oci.image"


def libraries(program):
    """Where the loader finds what `program` is linked with, itself included; none where all is linked in."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True)
    if listed.returncode != 0:
        if "not a dynamic executable" in listed.stdout + listed.stderr or "Not a valid dynamic program" in listed.stderr:
            return []
        sys.exit(f"ldd {program}: {listed.stderr.strip()}")
    if "not found" in listed.stdout:
        sys.exit(f"a library is missing here:\n{listed.stdout}")
    # "libc.so.6 => /lib/libc.so.6 (0x…)" and "/lib64/ld-linux-x86-64.so.2 (0x…)"; the kernel's own has no path.
    words = (line.split("=>")[-1].split()[0] for line in listed.stdout.splitlines() if line.strip())
    return sorted({word for word in words if word.startswith("/")})


def contents(program, policy):
    """Files by their path in the image, with mode and bytes."""
    files = {path: (0o644, text.encode()) for path, text in TEXTS.items()}
    files[POLICY] = (0o644, policy.read_bytes())
    files[PROGRAM] = (0o755, program.read_bytes())
    for library in libraries(program):
        files[library.lstrip("/")] = (0o755, Path(library).read_bytes())
    return files


def member(name, mode, size=None):
    """Without time, and of root: nothing of the machine that it is made on."""
    made = tarfile.TarInfo(name)
    made.mode, made.mtime, made.uname, made.gname = mode, 0, "root", "root"
    if size is None:
        made.type = tarfile.DIRTYPE
    else:
        made.size = size
    return made


def packed(files, folders):
    """A tar file of these, all folders on the way included."""
    folders = dict(folders)
    for path in [*files, *folders]:
        for parent in Path(path).parents:
            if str(parent) != ".":
                folders.setdefault(str(parent), 0o755)
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for folder in sorted(folders):
            tar.addfile(member(folder, folders[folder]))
        for path in sorted(files):
            mode, data = files[path]
            tar.addfile(member(path, mode, len(data)), io.BytesIO(data))
    return written.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def image(files, tag):
    """The tar file of an image with these files, called `tag`."""
    layer = packed(files, FOLDERS)
    compressed = gzip.compress(layer, compresslevel=6, mtime=0)
    name, _, version = tag.rpartition(":")
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Entrypoint": ["/" + PROGRAM],
            "Cmd": ["collect", "--config", "/" + POLICY],
            # It begins as root and ceases to be (docs/security.md).
            "User": "0:0",
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": {"org.opencontainers.image.title": name, "org.opencontainers.image.version": version},
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    }
    blobs = {}

    def blob(data, kind):
        blobs["blobs/" + digest(data).replace(":", "/")] = (0o644, data)
        return {"mediaType": f"{TYPE}.{kind}", "digest": digest(data), "size": len(data)}

    def text(value):
        return json.dumps(value, indent=1, sort_keys=True).encode()

    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{TYPE}.manifest.v1+json",
        "config": blob(text(config), "config.v1+json"),
        "layers": [blob(compressed, "layer.v1.tar+gzip")],
    }
    entry = blob(text(manifest), "manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"localhost/{tag}"}
    blobs["index.json"] = (0o644, text({"schemaVersion": 2, "manifests": [entry]}))
    blobs["oci-layout"] = (0o644, text({"imageLayoutVersion": "1.0.0"}))
    return packed(blobs, {})


def version():
    lines = (ROOT / "Cargo.toml").read_text().splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("version = "))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/stallscope", help="what `make build` made, or a static build")
    parser.add_argument("--policy", type=Path, default=ROOT / "contrib/stallscope.toml", help="the policy that is in force where none is mounted")
    parser.add_argument("--tag", default=f"stallscope:{version()}", metavar="NAME:VERSION")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "target/image/stallscope.tar", metavar="FILE")
    arguments = parser.parse_args()
    if not arguments.program.exists():
        sys.exit(f"{arguments.program} is not there; `make build` makes it")
    files = contents(arguments.program, arguments.policy)
    made = image(files, arguments.tag)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_bytes(made)
    for path in sorted(files):
        mode, data = files[path]
        print(f"{mode:4o} {len(data):>11,}  /{path}")
    print(f"{arguments.output}: {len(made):,} bytes, {digest(made)}")


if __name__ == "__main__":
    main()
