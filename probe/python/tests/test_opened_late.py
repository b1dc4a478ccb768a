"""What a data set opens when it is first asked for what it lacks is opened where torch has it opened: in each worker, and not before these are forked,
which would share it."""

import json
import sys

import pytest
from collector import run

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

import stallscope  # noqa: E402

SAMPLES = 8
SCRIPT = """
import json, sys
import torch
from test_opened_late import Delegating

dataset = Delegating(sys.argv[1])
loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2)
print(json.dumps([[int(one) for _ in range(3) for batch in loader for one in batch], "within" in vars(dataset)]))
"""


class Within:
    def __init__(self, folder):
        self.folder = folder

    def number(self, index):
        with open(f"{self.folder}/{index}", "rb") as file:
            return int(file.read())


class Delegating(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.number(index)

    def __getattr__(self, name):
        if "folder" not in vars(self):
            raise AttributeError(name)
        if "within" not in vars(self):
            self.within = Within(self.folder)
        return getattr(self.within, name)


@pytest.fixture
def folder(tmp_path):
    for number in range(SAMPLES):
        (tmp_path / str(number)).write_text(str(number))
    return tmp_path


@pytest.mark.parametrize("kind", [stallscope.DataLoader, torch.utils.data.DataLoader])
def test_a_loader_with_a_position_does_not_ask(folder, kind):
    dataset = Delegating(folder)
    loader = kind(dataset, batch_size=2, num_workers=2)
    checkpointer = stallscope.Checkpointer(folder / "ckpts", loader=loader, signals=())
    assert [one for batch in loader for one in batch.tolist()] == list(range(SAMPLES))
    checkpointer.save(wait=True)
    checkpointer.close()
    assert "within" not in vars(dataset)


def test_nor_does_the_cache_of_a_job(folder, tmp_path_factory):
    script = tmp_path_factory.mktemp("script") / "script.py"
    script.write_text("import sys; sys.path.insert(0, sys.argv[2])\n" + SCRIPT)
    runtime = str(tmp_path_factory.mktemp("runtime"))
    tests = __file__.rpartition("/")[0]
    done = run([sys.executable, script, folder, tests], STALLSCOPE_CACHE_BYTES=str(1 << 20), STALLSCOPE_RUNTIME_DIR=runtime)
    assert done.code == 0, done.err
    assert json.loads(done.out) == [list(range(SAMPLES)) * 3, False]
    uses = [record for process in done.collector.processes for record in process.of("CacheUses")]
    assert sum(record.hits for record in uses) == 2 * SAMPLES
