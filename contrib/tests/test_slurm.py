"""Slurm's prolog and epilog, with what slurmd gives them: the policy of a partition comes with a job and goes with it."""

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import CONTRIB, ROOT, skipped, until

SCRIPTS = CONTRIB / "slurm"
NOBODY, OTTO = 65534, 4343
BASE = '[[jobs.rule]]\nmode = "observe"\n'
GPU = 'mode = "act"\ncache = { max = "64MiB" }\n'
IDLE = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.05)\n"


class Cluster:
    """A node of Slurm's, in a folder."""

    def __init__(self, folder, program):
        self.folder, self.program = folder, program
        self.config, self.partitions, self.run = folder / "stallscope.toml", folder / "slurm", folder / "run-slurm"
        self.partitions.mkdir()
        self.config.write_text(BASE)
        (self.partitions / "gpu.toml").write_text(GPU)
        self.variables = {
            "STALLSCOPE_CONFIG": self.config,
            "STALLSCOPE_SLURM": self.partitions,
            "STALLSCOPE_SLURM_RUN": self.run,
            "STALLSCOPE_PROGRAM": program,
            "STALLSCOPE_RELOAD": "true",
        }

    def script(self, name, **variables):
        """What it prints on stderr. It never fails, and has no more in its environment than slurmd sets."""
        environment = {name: os.fspath(value) for name, value in {**self.variables, **variables}.items()}
        done = subprocess.run([SCRIPTS / name], env=environment, cwd="/", capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "")
        return done.stderr

    def prolog(self, job=71, **variables):
        slurms = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(NOBODY), "SLURM_JOB_USER": "nobody", "SLURM_JOB_PARTITION": "gpu"}
        return self.script("prolog.sh", **{**slurms, **variables})

    def epilog(self, job=71, **variables):
        return self.script("epilog.sh", SLURM_JOB_ID=str(job), **variables)

    def policy(self):
        """As it is understood, a line a rule."""
        words = [self.program, "collect", "--check", "--config", self.run / "stallscope.toml"]
        checked = subprocess.run(words, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
        return [line for line in checked.stdout.splitlines() if line[0].isdigit() and ". " in line]


@pytest.fixture
def cluster(folder, program):
    return Cluster(folder, program)


def test_a_job_has_its_partitions_policy_from_prolog_to_epilog(as_root, cluster, groups):
    package = ROOT / "target/python"
    if not (package / "stallscope/_native.abi3.so").exists():
        skipped(f"there is no staged package in {package}; `make build` makes it")
    folder = cluster.folder
    # Where the job's user reaches them.
    shutil.copytree(package, folder / "python", ignore=shutil.ignore_patterns("__pycache__"))
    program = shutil.copy(cluster.program, folder / "stallscope")
    for name in ("work", "run"):
        (folder / name).mkdir()
        os.chown(folder / name, NOBODY, NOBODY)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder / "work"),
        "STALLSCOPE_RUNTIME_DIR": str(folder / "run"),
        "STALLSCOPE_KERNEL_SOCKET": str(folder / "kernel.sock"),
        "STALLSCOPE_PYTHON": str(folder / "python"),
    }
    assert cluster.script("start.sh") == ""
    service = [program, "node-service", "--config", cluster.run / "stallscope.toml", "--socket", folder / "node.sock"]
    service = subprocess.Popen([*service, "--state", folder / "state", "--user", str(OTTO)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cluster.variables["STALLSCOPE_RELOAD"] = f"kill -HUP {service.pid}"

    def start(name, group):
        enter = 'echo 0 >"$0/cgroup.procs" && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"'
        job = [program, "run", "--no-kernel", "--name", name, "--", "/usr/bin/python3", "-c", IDLE]
        return subprocess.Popen(["sh", "-c", enter, group, *job], cwd=folder / "work", env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def shown():
        node = subprocess.run([program, "node", "--json"], env=environment, capture_output=True, text=True)
        jobs = json.loads(node.stdout)["jobs"] if node.returncode == 0 else []
        return {job["name"]: (job["mode"], job["rule"], job["place"], job["state"]) for job in jobs}

    jobs = []
    try:
        until("the service listens", lambda: (folder / "node.sock").exists())
        jobs.append(start("inside", groups("system.slice/slurmstepd.scope/job_71/step_0/user/task_0")))
        jobs.append(start("beside", groups("system.slice/slurmstepd.scope/job_711/step_0/user/task_0")))
        left = ("observe", 1, "left alone")
        until("both are there", lambda: {name: (*seen[:2], seen[3]) for name, seen in shown().items()} == {"inside": left, "beside": left})
        assert cluster.prolog() == ""
        until("it is tuned", lambda: shown()["inside"] == ("act", 1, "Slurm job 71, step 0", "tuned"))
        assert shown()["beside"] == ("observe", 2, "Slurm job 711, step 0", "left alone")
        assert cluster.epilog() == ""
        until("it is left alone", lambda: shown()["inside"] == ("observe", 1, "Slurm job 71, step 0", "left alone"))
        (folder / "work/stop").touch()
        assert [job.wait(120) for job in jobs] == [0, 0]
    finally:
        for process in [*jobs, service]:
            process.terminate()
            process.wait(60)


def test_a_rule_is_for_one_job_of_one_user(cluster):
    assert cluster.prolog() == ""
    assert cluster.policy()[0].startswith("1. user nobody, cgroup */job_71/*: act, caches up to 64")
    # Requeued.
    (cluster.partitions / "gpu.toml").write_text('mode = "advise"\n')
    assert cluster.prolog() == ""
    first, last = cluster.policy()
    assert first.startswith("1. user nobody, cgroup */job_71/*: advise") and last.startswith("2. every job: observe")
    assert cluster.epilog() == "" and len(cluster.policy()) == 1
    assert cluster.epilog() == ""


def test_partitions_without_a_file_have_the_default_or_none(cluster):
    assert cluster.prolog(SLURM_JOB_PARTITION="cpu") == ""
    assert not cluster.run.exists()
    (cluster.partitions / "default.toml").write_text('mode = "off"\n')
    for number, partition in enumerate(["cpu", "", "../slurm/gpu", ".gpu", "a b"]):
        assert cluster.prolog(job=number, SLURM_JOB_PARTITION=partition) == ""
    assert [line.rpartition(": ")[2] for line in cluster.policy()] == ["off"] * 5 + ["observe"]


@pytest.mark.parametrize("name", ["", "*", "m?ra", "x' }\nmode = 'act'\n[[jobs.rule]]\n#", "a\tb"])
def test_a_name_that_is_none_is_its_number(cluster, name):
    assert cluster.prolog(SLURM_JOB_USER=name) == ""
    assert cluster.policy()[0].startswith(f"1. user {NOBODY}, cgroup */job_71/*: act")


def test_a_name_of_a_domain_is_itself(cluster):
    assert cluster.prolog(SLURM_JOB_USER=r"LAB\nina") == ""
    assert cluster.policy()[0].startswith(r"1. user LAB\nina, ")


@pytest.mark.parametrize("lines", ['mode = "fly"\n', 'mode = "act"\nmatch = { user = "*" }\n', 'mode = "act"\n[node]\nmemory_reserve = "0"\n', "\0"])
def test_lines_that_are_no_rule_are_named_and_change_nothing(cluster, lines):
    cluster.script("start.sh")
    (cluster.partitions / "gpu.toml").write_text(lines)
    printed = cluster.prolog()
    assert "gpu.toml" in printed and "is not taken" in printed and printed.count("\n") == 1
    assert [line[2:] for line in cluster.policy()] == [" every job: observe"]
    (cluster.partitions / "gpu.toml").write_text(GPU)
    assert cluster.prolog() == "" and len(cluster.policy()) == 2


def test_a_policy_with_a_mistake_leaves_the_last_one_and_jobs_come_and_go(cluster):
    cluster.config.write_text('[[jobs.rule]]\nmatch = { user = "ann" }\nmode = "advise"\n')
    assert cluster.prolog(job=1) == ""
    cluster.config.write_text("[[jobs.rule]]\nmode = 7\n")
    printed = cluster.prolog(job=2)
    assert f"{cluster.config} is not taken" in printed and "line 2" in printed and printed.count("\n") == 1
    assert [line.split(":")[0][3:] for line in cluster.policy()] == [
        "user nobody, cgroup */job_1/*",
        "user nobody, cgroup */job_2/*",
        "user ann",
    ]
    cluster.epilog(job=1)
    assert len(cluster.policy()) == 2
    cluster.config.write_text(BASE)
    assert cluster.epilog(job=2) == "" and [line[3:] for line in cluster.policy()] == ["every job: observe"]


def test_many_jobs_at_once_all_have_their_rules(cluster):
    with ThreadPoolExecutor(8) as at_once:
        assert set(at_once.map(cluster.prolog, range(8))) == {""}
        assert len(cluster.policy()) == 9
        assert set(at_once.map(cluster.epilog, range(8))) == {""}
    assert len(cluster.policy()) == 1


def test_what_is_missing_is_one_line_and_no_failure(cluster):
    assert "SLURM_JOB_ID is no number" in cluster.prolog(job="")
    assert "SLURM_JOB_ID is no number" in cluster.epilog(job="1/../2")
    assert "`false` failed" in cluster.prolog(STALLSCOPE_RELOAD="false")
    assert cluster.policy()[0].startswith("1. user nobody")
    printed = cluster.prolog(job=72, STALLSCOPE_PROGRAM="/nowhere/stallscope")
    assert "is not taken" in printed and len(cluster.policy()) == 2
    cluster.config.unlink()
    assert "is not taken" in cluster.epilog() and len(cluster.policy()) == 1
