"""Callbacks that go by a state that they loaded as a fit starts find it then, as where Lightning resumes from a checkpoint of its own."""

import json
import subprocess

from collector import PACKAGE, environment
from conftest import needs

SCRIPT = """
import json, logging, os, random, sys, time, warnings
import torch, lightning
import stallscope, stallscope.lightning
from lightning.pytorch.callbacks import LearningRateFinder, StochasticWeightAveraging
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Noting(lightning.Callback):
    # Freezes as the fit starts what it trains later, draws, and counts from what it loaded.
    def __init__(self, stop):
        self.stop, self.loaded, self.started, self.rates = stop, 0, None, []

    def on_fit_start(self, trainer, module):
        self.started = self.loaded
        torch.rand(3), random.random()
        module.layers[0].requires_grad_(False)

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            module.layers[0].requires_grad_(True)

    def on_train_batch_start(self, trainer, *ignored):
        if trainer.global_step == self.stop:
            raise KeyboardInterrupt
        self.rates.append([trainer.global_step, trainer.optimizers[0].param_groups[0]["lr"]])
        for saving in trainer.callbacks:
            if isinstance(saving, stallscope.lightning.CheckpointCallback):
                saving._checkpointer._wait()
                while not saving._checkpointer._saver.ready():
                    time.sleep(0.001)

    def state_dict(self):
        return {"loaded": 7}

    def load_state_dict(self, state):
        self.loaded = state["loaded"]

class Own(lightning.Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, *ignored):
        trainer.save_checkpoint(self.path)

class Module(lightning.LightningModule):
    lr = 0.01

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))

    def training_step(self, batch, number):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), self.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=60), "interval": "step"}}

def fit(how, name, stop):
    lightning.seed_everything(7, verbose=False)
    module, noting = Module(), Noting(stop)
    own = how in ("own", "behind")
    path = name + ".ckpt"
    callback = Own(path) if own else stallscope.lightning.CheckpointCallback(name, every=1)
    others = []
    if how == "finder":
        others = [LearningRateFinder(num_training_steps=4, min_lr=1e-3, max_lr=2e-3)]
    if how[:3] in ("swa", "own"):
        others = [StochasticWeightAveraging(0.05, swa_epoch_start=1, annealing_epochs=int(how[3:] or 1))]
    trainer = lightning.Trainer(max_epochs=4, accelerator="cpu", callbacks=[noting, callback, *others], logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    kind = torch.utils.data.DataLoader if how == "own" else stallscope.DataLoader
    loader = kind(torch.arange(80.0).reshape(20, 4) / 80, batch_size=4, shuffle=not own)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "stallscope")
        try:
            trainer.fit(module, loader, ckpt_path=path if own and os.path.exists(path) else None)
        except (KeyboardInterrupt, SystemExit):
            pass
    end = repr([module.state_dict(), torch.rand(1), random.random()])
    print(json.dumps({"rates": noting.rates, "started": noting.started, "end": end, "warned": [str(one.message) for one in caught]}), flush=True)

for job in sys.argv[1:]:
    child = os.fork()
    if not child:
        how, name, stop = job.split(":")
        fit(how, name, int(stop))
        os._exit(0)
    os.waitpid(child, 0)
"""


def fits(folder, *jobs):
    """As in test_checkpoint_lightning.py: to import Lightning takes longer than to train."""
    command = [needs("lightning"), "-c", SCRIPT, *jobs]
    done = subprocess.run(command, env=environment(None, PYTHONPATH=str(PACKAGE)), cwd=folder, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(jobs), done.stderr
    return lines


def test_they_find_it_and_what_they_do_then_is_undone(tmp_path):
    """Five steps an epoch; averaging begins with step 5, and its rate has arrived with step 10."""
    kinds = {"swa": "swa", "own": "own", "slow": "swa3", "finder": "finder", "plain": ""}
    jobs = [f"{how}:{name}{ends}" for name, how in kinds.items() for ends in ("-whole:-1", ":13", ":-1")]
    swa, own, slow, finder, plain = (outcomes[at : at + 3] for outcomes in [fits(tmp_path, *jobs)] for at in range(0, 15, 3))
    for whole, cut, resumed in (swa, plain, finder):
        (first, _), *_ = resumed["rates"]
        # Lightning has a finder try before others, which has them load a state.
        assert first in (12, 13) and whole["started"] == (7 if whole is finder[0] else 0) and resumed["started"] == 7
        assert resumed["rates"] == [one for one in whole["rates"] if one[0] >= first]
        assert resumed["end"] == whole["end"] and not resumed["warned"]
    # As Lightning's own, where that is an epoch behind, and says so.
    assert [rate for _, rate in own[2]["rates"]] == [rate for _, rate in own[0]["rates"]][13:]
    assert len(slow[2]["warned"]) == 1 and "annealed an epoch later" in slow[2]["warned"][0]
    assert slow[2]["rates"] != slow[0]["rates"][slow[2]["rates"][0][0] :]


def test_an_epoch_that_lightnings_own_resume_leaves_out_is_warned_of(tmp_path):
    """Saved by Lightning at an epoch's last batch, and within one."""
    _, behind, _, within = fits(tmp_path, "behind:behind:5", "behind:behind:-1", "behind:within:3", "behind:within:-1")
    assert len(behind["rates"]) == 10 and len(behind["warned"]) == 1 and "may take what is left of it, nothing, for the next epoch" in behind["warned"][0]
    assert len(within["rates"]) == 17 and not within["warned"]
