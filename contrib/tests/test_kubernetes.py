"""What contrib/kubernetes asks of a cluster, by the schema of its API and of what is known to be needed."""

import re
import shutil
import subprocess

import manifest
import pytest
from conftest import ROOT, skipped

# The first version whose nodes mostly have a kernel that it takes, and the newest that the schemas have.
VERSIONS = ["1.25", "1.37"]


def validated(document, version):
    try:
        import kubernetes_validate
    except ImportError:
        skipped("no kubernetes-validate; `scripts/setup.sh test` gets it")
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_daemonset_is_one_of_the_api(version):
    validated(manifest.read("daemonset.yaml"), version)


def test_a_key_that_the_api_has_not_is_found():
    """That the schema is strict."""
    wrong = manifest.read("daemonset.yaml")
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(Exception, match="hostPid"):
        validated(wrong, VERSIONS[-1])


def test_the_kustomization_has_what_it_names():
    kustomization = manifest.read("kustomization.yaml")
    (images,), (policy,) = kustomization["images"], kustomization["configMapGenerator"]
    assert images["name"] == manifest.collector()["image"]
    assert all((manifest.FOLDER / name).is_file() for name in kustomization["resources"] + policy["files"])
    assert policy["name"] in [volume["configMap"]["name"] for volume in manifest.pod()["volumes"] if "configMap" in volume]
    version = next(line.split('"')[1] for line in (ROOT / "Cargo.toml").read_text().splitlines() if line.startswith("version = "))
    assert images["newTag"] == version


def test_kubectl_makes_of_it_what_the_api_takes():
    if not shutil.which("kubectl"):
        skipped("no kubectl here, whose kustomize would be tried")
    import yaml

    built = subprocess.run(["kubectl", "kustomize", manifest.FOLDER], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    documents = {document["kind"]: document for document in yaml.safe_load_all(built.stdout)}
    assert set(documents) == {"ConfigMap", "DaemonSet"}
    for document in documents.values():
        validated(document, VERSIONS[-1])
        assert "namespace" not in document["metadata"]
    (volume,) = [one for one in documents["DaemonSet"]["spec"]["template"]["spec"]["volumes"] if "configMap" in one]
    assert volume["configMap"]["name"] == documents["ConfigMap"]["metadata"]["name"] != "stallscope"


def test_its_policy_is_understood(program):
    words = [program, "collect", "--check", "--config", manifest.FOLDER / "stallscope.toml"]
    checked = subprocess.run(words, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    modes = re.findall(r"^\d+\..*: (\w+)", checked.stdout, re.MULTILINE)
    assert modes == ["observe", "observe"], checked.stdout


def test_each_capability_and_each_mount_has_its_reason_beside_it():
    lines = (manifest.FOLDER / "daemonset.yaml").read_text().splitlines()
    names = [*manifest.capabilities(), *(f"name: {one['name']}" for one in manifest.collector()["volumeMounts"])]
    for name in names:
        at = next(number for number, line in enumerate(lines) if line.strip() == f"- {name}")
        assert lines[at - 1].lstrip().startswith("# "), name


def test_it_asks_for_no_more_than_it_has_reasons_for():
    pod, collector = manifest.pod(), manifest.collector()
    assert not any(pod.get(name) for name in ("hostNetwork", "hostIPC")) and not pod["automountServiceAccountToken"]
    context = collector["securityContext"]
    assert not context["privileged"] and context["readOnlyRootFilesystem"] and context["capabilities"]["drop"] == ["ALL"]
    of_node = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert of_node == {"/run/stallscope", "/var/lib/stallscope"}
