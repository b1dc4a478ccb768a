"""Lightning trains from a loader with a cache as from any other, and keeps the cache where it makes loaders anew."""

import json
import os
import subprocess

from cached_sets import FILES
from collector import PACKAGE, environment
from conftest import needs

SCRIPT = """
import json, logging, sys, warnings
import torch, lightning
import stallscope
from cached_sets import Files, fill
from lightning.fabric.utilities.data import _update_dataloader
from torch.utils.data.distributed import DistributedSampler

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
seen = []

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, number):
        seen.append(batch[0].tolist())
        return self.layer(batch[1].float()[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)

def main():
    fill(sys.argv[1])
    loader = stallscope.DataLoader(Files(sys.argv[1]), batch_size=4, shuffle=True, num_workers=2, cache="1MiB")
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=sys.argv[1],
    )
    trainer.fit(Module(), loader)
    # What its strategies of several ranks do.
    anew = _update_dataloader(loader, DistributedSampler(loader.dataset, 2, 0))
    rank = sum((batch[0].tolist() for batch in anew), [])
    print(json.dumps({"seen": seen, "figures": loader.cache_figures(), "rank": rank, "again": anew.cache_figures()}))

if __name__ == "__main__":
    main()
"""


def test_a_trainer_fits_with_a_cached_loader(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(PACKAGE), os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    env = environment(None, PYTHONPATH=path, STALLSCOPE_RUNTIME_DIR=str(tmp_path / "run"))
    command = [needs("lightning"), str(tmp_path / "script.py"), str(tmp_path / "files")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert sorted(sum(outcome["seen"], [])) == sorted([*range(FILES)] * 2)
    assert (outcome["figures"]["misses"], outcome["figures"]["hits"]) == (FILES, FILES)
    assert len(outcome["rank"]) == (FILES + 1) // 2
    assert (outcome["again"]["misses"], outcome["again"]["hits"]) == (0, len(outcome["rank"]))
