#!/usr/bin/env python3
"""Writes what the program and the Python package are made of, as a CycloneDX 1.5 document: sbom.py [FILE], else to stdout.

Of the crates that are built into them, as Cargo.lock pins them: name, version, licence, source and checksum, and who needs
whom. The same sources give the same bytes.
"""

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
PRODUCTS = ["stallscope", "stallscope-python"]
# C sources that come with a crate, where no other list has them: the crate, what is in it, and where that says its version.
BUNDLED = {
    "libsqlite3-sys": ("sqlite", "sqlite3/sqlite3.h", r'#define SQLITE_VERSION\s+"([^"]+)"'),
    "turbojpeg-sys": ("libjpeg-turbo", "libjpeg-turbo/CMakeLists.txt", r"set\(VERSION ([0-9.]+)\)"),
    "zstd-sys": ("zstd", "Cargo.toml", r'version = "[0-9.]+\+zstd\.([0-9.]+)"'),
}


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def built_in(resolve, roots):
    """The packages that `roots` are made of: no build scripts' own needs are left out, and tests' are."""
    nodes = {node["id"]: node for node in resolve["nodes"]}
    needs, waiting = {}, list(roots)
    while waiting:
        one = waiting.pop()
        if one in needs:
            continue
        kinds = [(dep["pkg"], {kind["kind"] for kind in dep["dep_kinds"]}) for dep in nodes[one]["deps"]]
        needs[one] = sorted(pkg for pkg, kind in kinds if kind != {"dev"})
        waiting += needs[one]
    return needs


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums):
    component_json = {"type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"], "purl": purl(package)}
    if package["license"]:
        component_json["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        component_json["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        component_json["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    if package["name"] in BUNDLED:
        name, header, pattern = BUNDLED[package["name"]]
        text = Path(package["manifest_path"]).parent.joinpath(header).read_text(errors="replace")
        version = re.search(pattern, text).group(1)
        component_json["components"] = [{"type": "library", "name": name, "version": version, "purl": f"pkg:generic/{name}@{version}"}]
    return component_json


def document():
    found = metadata()
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
    packages = {one["id"]: one for one in found["packages"]}
    roots = [one["id"] for one in found["packages"] if one["name"] in PRODUCTS]
    needs = built_in(found["resolve"], roots)
    order = sorted(needs, key=lambda one: (packages[one]["name"], packages[one]["version"]))
    product = packages[next(one for one in roots if packages[one]["name"] == PRODUCTS[0])]
    parts = [component(packages[one], checksums) for one in order]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(parts))}",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "product", "name": product["name"], "version": product["version"]}},
        "components": parts,
        "dependencies": [
            {"ref": "product", "dependsOn": sorted(purl(packages[one]) for one in roots)},
            *({"ref": purl(packages[one]), "dependsOn": sorted({purl(packages[need]) for need in needs[one]})} for one in order),
        ],
    }


def main():
    text = json.dumps(document(), indent=1) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
