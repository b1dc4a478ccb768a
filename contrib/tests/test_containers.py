"""Collector and jobs in different containers, with the rights and mounts of contrib/kubernetes and no more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import manifest
import pytest
from conftest import ROOT, skipped, until
from container import Container

PACKAGE = ROOT / "target/python"
USER = 4242
# Of the collector's container, and of the job's.
COLLECTORS = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0a1b2c3d_0000_4000_8000_000000000001.slice/cri-containerd-{}.scope"
JOBS = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_0000_4000_8000_000000000002.slice/cri-containerd-{}.scope"
IDLE = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.05)\n"
IN = "pod 0a1b2c3d-0000-4000-8000-000000000002, container bbbbbbbbbbbb"


@pytest.fixture(autouse=True)
def needed(as_root):
    if not (PACKAGE / "stallscope/_native.abi3.so").exists():
        skipped(f"there is no staged package in {PACKAGE}; `make build` makes it")


class Node:
    """A node on which the collector's container is started as the manifest has it."""

    def __init__(self, folder, files, groups, without=None, policy=None):
        self.folder, self.files, self.groups = folder, files, groups
        container, pod = manifest.collector(), manifest.pod()
        context = container["securityContext"]
        assert context["capabilities"]["drop"] == ["ALL"] and not context["allowPrivilegeEscalation"]
        self.printed = folder / "collector.printed"
        collector = Container(
            files,
            manifest.mounts(folder, policy),
            own_pids=not pod["hostPID"],
            user=context["runAsUser"],
            capabilities=[one for one in context["capabilities"]["add"] if one != without],
            groups=[groups(COLLECTORS.format("a" * 64))],
            read_only=context["readOnlyRootFilesystem"],
        )
        with open(self.printed, "wb") as printed:
            self.collector = collector.start("/usr/bin/stallscope", *container["args"], stdout=printed, stderr=subprocess.STDOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.collector.__exit__()

    def text(self):
        return self.printed.read_text()

    def serves(self):
        def both():
            assert self.collector.process.poll() is None, self.text()
            return "serving this node's policy" in self.text() and "serving kernel evidence" in self.text()

        until("collector and service serve", both)
        return self

    def jobs(self):
        """As `kubectl exec` shows them to root."""
        shown = self.collector.run("/usr/bin/stallscope", "node", "--json")
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)["jobs"]

    def job(self, own_pids=True, own_users=None, **environment):
        """A container for jobs: this Python, this program, and of the node the folder of the collector's sockets."""
        root, owner = self.folder / "job", USER + (own_users or 0)
        for name in ("tmp", "scratch", "usr"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        os.chown(root / "scratch", owner, owner)
        mounts = [("/usr", "/usr", False)]
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                (root / name).symlink_to(os.readlink(f"/{name}"))
            elif Path("/", name).exists():
                mounts.append((f"/{name}", f"/{name}", False))
        for prefix in dict.fromkeys([sys.base_prefix, sys.prefix]):
            if prefix != "/usr":
                mounts.append((os.path.realpath(prefix), prefix, False))
        mounts += [(PACKAGE, "/package", False), (ROOT / "tests/jobs", "/jobs", False), (self.files / "usr/bin", "/image", False)]
        mounts.append((self.folder / "run/stallscope", "/run/stallscope", False))
        environment = {"HOME": "/scratch", "USER": "trainer", "PYTHONDONTWRITEBYTECODE": "1", "STALLSCOPE_PYTHON": "/package", **environment}
        group = self.groups(JOBS.format("b" * 64))
        return Container(root, mounts, own_pids, own_users, USER, groups=[group], environment=environment, folder="/scratch")

    def report(self, recording):
        printed = subprocess.run([self.files / "usr/bin/stallscope", "report", recording, "--format", "json"], capture_output=True, text=True)
        return json.loads(printed.stdout) if printed.returncode == 0 else None


def steps(report):
    return sum(phase["steps"] for phase in (report or {}).get("phases", []) if phase["phase"] == "training")


@pytest.fixture
def node(folder, files_of_image, groups):
    with Node(folder, files_of_image, groups) as made:
        yield made.serves()


def test_a_job_with_process_numbers_of_its_own_is_found_measured_and_recorded(node):
    confined = next(line for line in node.text().splitlines() if "confined (" in line)
    for layer in ("user: stallscope", "capabilities: none", "new privileges: none", "Landlock: ", "seccomp: "):
        assert layer in confined
    output = open(node.folder / "job.printed", "wb")
    with node.job().start(sys.executable, "/jobs/sums.py", stdout=output, stderr=output) as job:
        found = until("it is observed", lambda: next((one for one in node.jobs() if one["state"].startswith("observed by the kernel")), None))
        assert (found["name"], found["user"], found["place"]) == ("sums", str(USER), IN)
        assert (found["mode"], found["rule"], found["pid"]) == ("observe", 1, job.pid)
        recordings = node.folder / "var/lib/stallscope/recordings" / str(USER)
        recording = until("it is recorded", lambda: next(iter(recordings.glob("*.stall")), None))
        assert recording.stat().st_uid == USER and recording.stat().st_mode & 0o777 == 0o600
        report = until("its steps are seen", lambda: (report := node.report(recording)) and steps(report) > 20 and report)
        assert (report["kernel"], report["shim"]) == ("on", "off")
        (node.folder / "job/scratch/stop").touch()
        assert job.wait() == 0
    until("it is forgotten", lambda: not node.jobs())


def test_a_job_of_run_with_the_nodes_process_numbers_has_shim_and_kernel(node):
    words = ["/image/stallscope", "run", "--name", "train", "-o", "/scratch/train.stall", "--", sys.executable, "/jobs/sums.py", "--epochs", "6"]
    output = open(node.folder / "job.printed", "wb")
    with node.job(own_pids=False, own_users=200_000).start(*words, stdout=output, stderr=output) as job:
        assert job.wait() == 0, (node.folder / "job.printed").read_text()
    report = node.report(node.folder / "job/scratch/train.stall")
    assert (report["kernel"], report["shim"], steps(report) > 80) == ("on", "on", True)


def test_run_with_process_numbers_of_its_own_says_what_is_missing_and_measures_without_it(node):
    words = ["/image/stallscope", "run", "-o", "/scratch/plain.stall", "--", sys.executable, "-c", "print('it runs')"]
    output = open(node.folder / "job.printed", "wb")
    with node.job().start(*words, stdout=output, stderr=output) as job:
        assert job.wait() == 0
    printed = (node.folder / "job.printed").read_text()
    assert "it runs" in printed and "kernel: missing" in printed
    assert "pid namespace of its own" in node.report(node.folder / "job/scratch/plain.stall")["kernel"]["missing"]


def test_a_job_of_run_in_another_container_is_tuned_where_the_policy_says_so(folder, files_of_image, groups):
    """Its socket is at a path that leads to nothing in the collector's container."""
    policy = '[[jobs.rule]]\nmatch = { cgroup = "*kubepods*" }\nmode = "act"\n'
    words = ["/image/stallscope", "run", "--no-kernel", "--name", "idle", "--", "/usr/bin/python3", "-c", IDLE]
    with Node(folder, files_of_image, groups, policy=policy) as node, node.serves().job(own_pids=False).start(*words) as job:
        until("it is tuned", lambda: [(one["name"], one["place"], one["state"]) for one in node.jobs()] == [("idle", IN, "tuned")])
        (folder / "job/scratch/stop").touch()
        assert job.wait() == 0


def test_root_measures_a_job_of_any_container_from_the_collectors(node):
    """As `kubectl exec POD -- stallscope attach PID` does, with the rights of the collector's container and no others."""
    output = open(node.folder / "job.printed", "wb")
    with node.job(own_users=300_000).start(sys.executable, "/jobs/sums.py", stdout=output, stderr=output) as job:
        # Its loader has begun.
        until("it trains", lambda: (node.folder / "job.printed").read_text())
        looked = node.collector.run("/usr/bin/stallscope", "attach", str(job.pid), "--for", "3s", "-o", "/tmp/look.stall")
        assert looked.returncode == 0, looked.stderr
        report = json.loads(node.collector.run("/usr/bin/stallscope", "report", "/tmp/look.stall", "--format", "json").stdout)
        assert (report["kernel"], report["shim"], steps(report) > 20) == ("on", "off", True)


@pytest.mark.parametrize("capability", ["BPF", "PERFMON", "SETUID", "SETGID"])
def test_each_capability_is_needed(folder, files_of_image, groups, capability):
    assert capability in manifest.capabilities() and len(manifest.capabilities()) == 4
    with Node(folder, files_of_image, groups, without=capability) as node:
        missing = f"CAP_{capability}"
        until(f"{missing} is named", lambda: missing in node.text())
