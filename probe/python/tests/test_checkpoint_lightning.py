"""A Lightning job that is cut off goes on as if it had not been, with one line more in its script."""

import json
import subprocess

import pytest
from collector import PACKAGE, environment
from conftest import needs

SCRIPT = """
import hashlib, json, logging, os, sys, time, warnings
import torch, lightning
import stallscope, stallscope.lightning
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.randn(4) + index

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (torch.full((4,), index / 40) for index in range(40))

class Loaders(lightning.LightningDataModule):
    # Makes its loaders when the sanity check is over, and when it begins.
    def train_dataloader(self):
        return stallscope.DataLoader(Data(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(Data(), batch_size=20, num_workers=1, persistent_workers=True)

class Unsized(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(torch.randperm(40).tolist())

class Unfreezing(lightning.pytorch.callbacks.BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.layers[0])

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.layers[0], optimizer)

class Average(lightning.Callback):
    # Of the weights; it comes behind the callback that saves.
    def __init__(self):
        self.mean = None

    def on_train_batch_end(self, trainer, module, *ignored):
        now = module.layers[0].weight.detach().clone()
        self.mean = now if self.mean is None else self.mean.lerp(now, 0.1)

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]

class Written(lightning.Callback):
    # A save that is due while no memory for it is free is passed over, and a busy machine takes long to write one and to make such memory.
    def on_train_batch_start(self, trainer, *ignored):
        (saving,) = (one for one in trainer.callbacks if isinstance(one, stallscope.lightning.CheckpointCallback))
        saving._checkpointer._wait()
        while not saving._checkpointer._saver.ready():
            time.sleep(0.001)

class Module(lightning.LightningModule):
    def __init__(self, stop):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        self.seen = []
        self.stop = stop

    def training_step(self, batch, number):
        batch = batch if torch.is_tensor(batch) else batch[0]
        if not self.automatic_optimization:
            # Steps with the gradients of two batches.
            self.manual_backward(self.layers(batch).square().mean())
            self.seen.append([self.trainer.global_step, number])
            if number % 2:
                self.optimizers().step()
                self.optimizers().zero_grad()
            return None
        self.seen.append([self.trainer.global_step, hashlib.sha256(repr(batch.tolist()).encode()).hexdigest()[:8]])
        return self.layers(batch).square().mean()

    def validation_step(self, batch, number):
        self.seen.append([self.trainer.global_step, "validated"])

    def on_train_batch_end(self, *ignored):
        if self.stop and self.trainer.global_step == self.stop:
            raise KeyboardInterrupt

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

def fit(folder, stop, every=4, how=""):
    lightning.seed_everything(5, verbose=False)
    module = Module(int(stop))
    module.automatic_optimization = how != "manual"
    callback = stallscope.lightning.CheckpointCallback(folder, every=int(every))
    average, others = Average(), []
    if hasattr(lightning.pytorch.callbacks, "EMAWeightAveraging"):
        # It saves the average as the module's state, and puts that right when it is called behind the module's restore.
        others.append(lightning.pytorch.callbacks.EMAWeightAveraging(decay=0.9))
    validating = torch.utils.data.DataLoader(Data(), batch_size=20) if how == "validated" else None
    if how == "unfrozen":
        others = [Unfreezing()]
    if how == "accumulated":
        others.append(lightning.pytorch.callbacks.GradientAccumulationScheduler({0: 1, 1: 2}))
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback, average, Written(), *others], logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                **({"val_check_interval": 3} if validating else {}))
    given = {"dataset": Stream()} if how == "stream" else {"dataset": Data(), "shuffle": True}
    if how == "unsized":
        given = {"dataset": Data(), "sampler": Unsized()}
    if how == "weighted":
        given = {"dataset": Data(), "sampling": "importance"}
    loader = stallscope.DataLoader(batch_size=4, **given) if how != "loaders" else None
    with warnings.catch_warnings(record=True) as warned:
        warnings.filterwarnings("always", "The sampler does not give")
        try:
            if how == "loaders":
                trainer.fit(module, datamodule=Loaders())
            else:
                trainer.fit(module, loader.weighted() if how == "weighted" else loader, validating)
        except (KeyboardInterrupt, SystemExit):
            pass
    end = hashlib.sha256(repr([value.tolist() for value in [*module.state_dict().values(), average.mean]]).encode()).hexdigest()
    start = callback.start and callback.start.step
    print(json.dumps({"start": start, "seen": module.seen, "end": end, "steps": trainer.global_step, "warned": len(warned)}), flush=True)

# To import Lightning takes longer than to train.
for job in sys.argv[1:]:
    child = os.fork()
    if not child:
        fit(*job.split(":"))
        os._exit(0)
    os.waitpid(child, 0)
"""


def fits(folder, *jobs):
    """What the jobs printed that trained one after the other: each a folder, the step that it ends after (0: none), how often it saves, and what else
    its Trainer does."""
    env = environment(None, PYTHONPATH=str(PACKAGE))
    command = [needs("lightning"), "-c", SCRIPT, *(f"{folder}/{job}" for job in jobs)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(jobs), done.stderr
    return lines


def test_lightning_goes_on_where_it_was(tmp_path):
    whole, cut, resumed = fits(tmp_path, "whole:0", "cut:6", "cut:0")
    assert whole["steps"] == 20 and cut["steps"] == 6
    assert resumed["start"] == 4 and resumed["seen"] == whole["seen"][4:]
    assert resumed["end"] == whole["end"]


def test_no_epoch_is_lost_where_a_save_is_due_at_its_end(tmp_path):
    # It has ten batches.
    whole, cut, resumed = fits(tmp_path, "whole:0:10", "cut:12:10", "cut:0:10")
    assert cut["steps"] == 12 and resumed["start"] == 11
    assert resumed["steps"] == 20 and resumed["seen"] == whole["seen"][11:]
    assert resumed["end"] == whole["end"]


def test_no_validation_is_lost_where_a_save_is_due_before_it(tmp_path):
    # In mid-epoch, after each third batch; and a save is due at each step.
    whole, cut, resumed = fits(tmp_path, "whole:0:1:validated", "cut:6:1:validated", "cut:0:1:validated")
    assert cut["steps"] == 6 and resumed["start"] == 5
    assert [step for step, what in resumed["seen"] if what == "validated"] == [6, 6, 9, 9, 13, 13, 16, 16, 19, 19]
    assert resumed["seen"] == whole["seen"][-len(resumed["seen"]) :]
    assert resumed["end"] == whole["end"]


def test_the_seed_of_workers_that_began_in_the_sanity_check_is_known(tmp_path):
    whole, stopped, resumed = fits(tmp_path, "whole:0:1000:loaders", "cut:6:4:loaders", "cut:0:4:loaders")
    assert stopped["steps"] == 6 and resumed["start"] == 4
    assert resumed["seen"] == whole["seen"][-len(resumed["seen"]) :] and resumed["end"] == whole["end"]


def test_gradients_are_accumulated_as_the_epoch_began(tmp_path):
    # Its second epoch, which begins at step 10, has steps of two batches.
    whole, cut, resumed = fits(tmp_path, "whole:0:1:accumulated", "cut:12:1:accumulated", "cut:0:1:accumulated")
    assert whole["steps"] == 15 and cut["steps"] == 12 and resumed["start"] == 12
    assert resumed["steps"] == 15 and resumed["seen"] == whole["seen"][-len(resumed["seen"]) :]
    assert resumed["end"] == whole["end"]


def test_no_gradient_is_lost_that_a_module_accumulates_by_itself(tmp_path):
    whole, cut, resumed = fits(tmp_path, "whole:0:3:manual", "cut:8:3:manual", "cut:0:3:manual")
    assert whole["steps"] == 10 and cut["steps"] == 8 and 0 < resumed["start"] <= 8
    assert resumed["seen"] == whole["seen"][2 * resumed["start"] :] and resumed["end"] == whole["end"]


def test_what_an_epoch_unfroze_is_trained_on(tmp_path):
    whole, cut, resumed = fits(tmp_path, "whole:0:1:unfrozen", "cut:13:1:unfrozen", "cut:0:1:unfrozen")
    assert cut["steps"] == 13 and resumed["start"] in (12, 13)
    assert resumed["seen"] == whole["seen"][resumed["start"] :] and resumed["end"] == whole["end"]


def test_the_position_of_a_loader_that_is_iterated_with_weights_is_kept(tmp_path):
    whole, cut, resumed = fits(tmp_path, "whole:0:4:weighted", "cut:13:4:weighted", "cut:0:4:weighted")
    assert cut["steps"] == 13 and resumed["start"] in (12, 13)
    assert resumed["seen"] == whole["seen"][resumed["start"] :] and resumed["end"] == whole["end"]


@pytest.mark.parametrize("how", ["stream", "unsized"])
def test_the_batch_that_lightning_takes_ahead_of_a_loader_without_a_length_is_not_lost(how, tmp_path):
    whole, cut, resumed = fits(tmp_path, f"whole:0:4:{how}", f"cut:13:4:{how}", f"cut:0:4:{how}")
    assert whole["steps"] == 20 and cut["steps"] == 13 and resumed["start"] == 13
    assert resumed["steps"] == 20 and resumed["seen"] == whole["seen"][13:] and not resumed["warned"]
    assert resumed["end"] == whole["end"]
