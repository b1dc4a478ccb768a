"""The scripts in examples/ run under `stallscope run` as their first lines say, and their steps are seen."""

import json
import subprocess
from pathlib import Path

import pytest
from collector import PACKAGE, environment
from conftest import needs

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
PROGRAM = PACKAGE.parent / "release" / "stallscope"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MOST_LINES = 60

# By script: the words before it, a package that it needs, ranks, and the samples that it trains on (None: as many as
# there are where the tests run).
SCRIPTS = {
    "vision.py": ([], "torchvision", 1, 3 * 480),
    "text.py": ([], "torch", 1, None),
    "lightning_fit.py": ([], "lightning", 1, 2 * 800),
    "hf_trainer.py": ([], "transformers", 1, 2 * 240),
    "ddp.py": (TORCHRUN, "torch", 2, 2 * 2048),
}


def test_every_example_is_tried_and_short():
    lines = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    # Another reader of a format, which the test of that format runs.
    assert lines.pop("read_pack.py")
    assert set(lines) == set(SCRIPTS)
    assert max(lines.values()) <= MOST_LINES, lines


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_trains_and_its_steps_are_seen(script, tmp_path):
    before, package, ranks, samples = SCRIPTS[script]
    python = needs(package)
    if not PROGRAM.exists():
        pytest.skip(f"SKIPPED: {PROGRAM} is not built; `make build` does")
    (tmp_path / "run").mkdir()
    # One thread each: other tests run beside it.
    env = environment(
        None, PYTHONPATH=str(PACKAGE), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", STALLSCOPE_PYTHON=str(PACKAGE),
        STALLSCOPE_RUNTIME_DIR=str(tmp_path / "run"), STALLSCOPE_KERNEL_SOCKET=str(tmp_path / "kernel"),
    )  # fmt: skip

    def done(*words):
        result = subprocess.run([str(word) for word in words], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    done(PROGRAM, "run", "-o", "job.stall", "--", python, *before, EXAMPLES / script, "data")
    run = json.loads(done(PROGRAM, "report", "job.stall", "--format", "json"))
    assert run["shim"] == "on" and len(run["ranks"]) == ranks
    # Lightning takes the first batch of an epoch while it is between two.
    trained = [phase for phase in run["phases"] if phase["phase"] in ("training", "between")]
    seen = sum(phase["samples"] for phase in trained)
    assert seen == samples or samples is None and seen > 0, trained
    assert sum(phase["steps"] for phase in trained) > 1
