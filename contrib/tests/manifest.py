"""What contrib/kubernetes asks for."""

from pathlib import Path

from conftest import CONTRIB, skipped

FOLDER = CONTRIB / "kubernetes"


def read(name):
    try:
        import yaml
    except ImportError:
        skipped("no PyYAML; `scripts/setup.sh test` gets it")
    return yaml.safe_load((FOLDER / name).read_text())


def pod():
    return read("daemonset.yaml")["spec"]["template"]["spec"]


def collector():
    (container,) = pod()["containers"]
    return container


def capabilities():
    return collector()["securityContext"]["capabilities"]["add"]


def mounts(folder, policy=None):
    """(source, target, writable) of each mount of the collector's, with what a kubelet makes for it below `folder`, which stands for the
    node's root. `policy`: another one than the manifest's."""
    volumes = {volume.pop("name"): volume for volume in pod()["volumes"]}
    return [(_source(volumes[one["name"]], one["name"], folder, policy), one["mountPath"], not one.get("readOnly", False)) for one in collector()["volumeMounts"]]


def _source(volume, name, folder, policy):
    ((kind, how),) = volume.items()
    if kind == "hostPath":
        assert how["type"] == "DirectoryOrCreate"
        source = folder / how["path"].lstrip("/")
        source.mkdir(parents=True, exist_ok=True)
    else:
        source = folder / "volumes" / name
        source.mkdir(parents=True)
        # As a kubelet makes them.
        source.chmod(0o777)
    if kind == "configMap":
        (generated,) = [one for one in read("kustomization.yaml")["configMapGenerator"] if one["name"] == how["name"]]
        # What is mounted is a link to a file in a folder that is a link.
        (source / "..1").mkdir()
        (source / "..data").symlink_to("..1")
        for file in generated["files"]:
            (source / "..1" / file).write_text(policy or (FOLDER / file).read_text())
            (source / file).symlink_to(Path("..data") / file)
    else:
        assert kind in ("hostPath", "emptyDir")
    return source
