"""Lightning's hooks that put something into a checkpoint are called when one is saved, and not before training has begun."""

import json
import subprocess

from collector import PACKAGE, environment
from conftest import needs

SCRIPT = """
import json, logging, sys, warnings
import torch, lightning
import stallscope, stallscope.lightning
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Module(lightning.LightningModule):
    def __init__(self, names):
        super().__init__()
        for name in names:
            setattr(self, name, torch.nn.Linear(2, 1))
        self.names, self.asked = names, []

    def on_train_start(self):
        if not hasattr(self, "average"):
            self.average = self.a.weight.detach().clone()

    def training_step(self, batch, number):
        return sum(getattr(self, name)(batch).square().mean() for name in self.names)

    def on_before_zero_grad(self, *ignored):
        self.average.lerp_(self.a.weight.detach(), 0.1)

    def on_save_checkpoint(self, checkpoint):
        self.asked.append(self.trainer.global_step)
        checkpoint["average"] = self.average

    def on_load_checkpoint(self, checkpoint):
        self.average = checkpoint["average"]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)

class Counting(lightning.Callback):
    def on_train_start(self, *ignored):
        self.counts = getattr(self, "counts", [])

    def on_train_batch_start(self, trainer, *ignored):
        self.counts.append(trainer.global_step)
        if trainer.global_step == self.stop:
            raise KeyboardInterrupt
        for one in trainer.callbacks:
            if isinstance(one, stallscope.lightning.CheckpointCallback):
                one._checkpointer._wait()

    def state_dict(self):
        return {"counts": self.counts}

    def load_state_dict(self, state):
        self.counts = state["counts"]

class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        self.rows = torch.arange(40.0).reshape(20, 2)
        return stallscope.DataLoader(self.rows, batch_size=2)

    def state_dict(self):
        return {"rows": len(self.rows)}

    def load_state_dict(self, state):
        pass

def fit(folder, stop, names="a", **options):
    lightning.seed_everything(1, verbose=False)
    module, counting = Module(names), Counting()
    counting.stop = stop
    callback = stallscope.lightning.CheckpointCallback(folder, every=4, **options)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback, counting], logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    before = {name: one.tolist() for name, one in module.state_dict().items()}
    started = {}
    class Looking(lightning.Callback):
        def on_train_start(self, *ignored):
            started.update({name: one.tolist() for name, one in module.state_dict().items()})
    trainer.callbacks.append(Looking())
    try:
        trainer.fit(module, datamodule=Data())
        error = None
    except (KeyboardInterrupt, SystemExit):
        error = None
    except Exception as raised:
        error = type(raised).__name__
    start = callback.start and callback.start.step
    misfits = callback.start.misfits if callback.start else []
    print(json.dumps({"start": start, "steps": trainer.global_step, "asked": module.asked, "error": error, "misfits": len(misfits),
                      "counts": getattr(counting, "counts", None), "as before": started == before, "unchanged": before == {name: one.tolist() for name, one in module.state_dict().items()},
                      "end": repr([module.state_dict(), getattr(module, "average", None)])}))

fit(sys.argv[1] + "/whole", 0 - 1)
fit(sys.argv[1] + "/cut", 9)
fit(sys.argv[1] + "/cut", -1)
fit(sys.argv[1] + "/cut", -1, "ab")
fit(sys.argv[1] + "/cut", -1, "ab", strict=False)
"""


def test_hooks_that_need_what_training_made_are_asked_from_the_first_step_on(tmp_path):
    done = subprocess.run([needs("lightning"), "-c", SCRIPT, tmp_path], env=environment(None, PYTHONPATH=str(PACKAGE)), capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 5, done.stderr
    whole, cut, resumed, other, fits = lines
    assert (whole["error"], whole["steps"]) == (None, 20), whole
    assert whole["asked"] and min(whole["asked"]) >= 1
    # A save that is due while no memory for it is free comes later.
    assert cut["steps"] == 9 and 4 <= resumed["start"] <= 9
    assert resumed["steps"] == 20 and resumed["end"] == whole["end"] and resumed["counts"] == whole["counts"]
    assert min(resumed["asked"]) > resumed["start"]
    # Another model is refused, and leaves what was there; or trains from the beginning.
    assert other["error"] == "CheckpointError" and other["unchanged"] and other["steps"] == 0, other
    assert fits["error"] is None and fits["misfits"] and fits["as before"] and fits["steps"] == 20, fits
