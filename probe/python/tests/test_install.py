"""`pip install ./probe/python` from a clean checkout gives an environment whose `stallscope` works."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# What git ignores, and its own folder.
NOT_IN_A_CLONE = shutil.ignore_patterns(".git", ".venv", "target", "wheel-data", "__pycache__", "*.pyc")


def done(command, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A virtual environment with nothing but the package."""
    clone, environment = tmp_path_factory.mktemp("clone") / "stallscope", tmp_path_factory.mktemp("venv")
    shutil.copytree(ROOT, clone, symlinks=True, ignore=NOT_IN_A_CLONE)
    venv.create(environment)
    # maturin lies beside this Python; isolated, pip would fetch one.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    env = {**os.environ, "CARGO_TARGET_DIR": str(TARGET), "PATH": path}
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--prefix", environment]
    moved = in_place_of_this_checkout(clone)
    # Where nobody may mount it is built where it lies, which takes minutes.
    if subprocess.run([*moved, "true"], capture_output=True).returncode:
        done([*pip, clone / "probe" / "python"], env=env)
    else:
        done([*moved, *pip, ROOT / "probe" / "python"], env=env)
    return environment


def in_place_of_this_checkout(clone):
    """What runs a command that finds the clone where this checkout is, with this one's Python and build folder: Cargo
    compiles a crate anew that lies elsewhere, and here it has compiled them."""
    (clone / "target").mkdir()
    (clone / ".venv").mkdir()
    binds = 'mount --rbind "$0/target" "$1/target"; mount --rbind "$0/.venv" "$1/.venv"; mount --rbind "$1" "$0"'
    as_root = [] if os.geteuid() == 0 else ["--map-current-user", "--keep-caps"]
    return ["unshare", "--mount", *as_root, "sh", "-ec", f'{binds}; shift; cd /; exec "$@"', ROOT, clone]


def test_the_installed_command_measures_a_job(installed, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STALLSCOPE_", "PYTHON"))}
    (tmp_path / "run").mkdir()
    env |= {"STALLSCOPE_RUNTIME_DIR": str(tmp_path / "run"), "STALLSCOPE_KERNEL_SOCKET": str(tmp_path / "kernel")}
    # The torch of the tests' own environment: the new one has none.
    env["PYTHONPATH"] = sysconfig.get_path("purelib")
    job = tmp_path / "train.py"
    job.write_text(
        "import stallscope, torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "print(stallscope.__file__, len(list(DataLoader(TensorDataset(torch.arange(8)), batch_size=2))))\n"
    )
    stallscope, python = installed / "bin" / "stallscope", installed / "bin" / "python"
    package, batches = done([stallscope, "run", "-o", "job.stall", "--", python, job], env=env, cwd=tmp_path).split()
    assert Path(package).is_relative_to(installed) and batches == "4"
    report = json.loads(done([stallscope, "report", "job.stall", "--format", "json"], env=env, cwd=tmp_path))
    assert report["shim"] == "on", report["shim"]


def test_each_python_of_the_environment_looks_for_the_nodes_service(installed, tmp_path):
    (packages,) = {file.parent for file in installed.glob("lib/python*/site-packages/stallscope.pth")}
    assert (packages / "_stallscope_start.py").exists()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STALLSCOPE_", "PYTHON"))}
    env["STALLSCOPE_KERNEL_SOCKET"] = str(tmp_path / "kernel.sock")
    code = "import sys; print([type(finder).__name__ for finder in sys.meta_path])"
    python = installed / "bin" / "python"
    assert "_Watch" not in done([python, "-c", code], env=env)
    (tmp_path / "node.sock").touch()
    assert "_Watch" in done([python, "-c", code], env=env)
