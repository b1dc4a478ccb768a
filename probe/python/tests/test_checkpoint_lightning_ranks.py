"""Each rank of a Lightning job goes on with its own position and its own draws."""

import json
import socket
import subprocess

from collector import PACKAGE, environment
from conftest import needs

SCRIPT = """
import json, logging, os, sys, time, warnings
import torch, lightning
import stallscope, stallscope.lightning
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.randn(2) + index

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
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
        self.seen, self.stop = [], stop

    def training_step(self, batch, number):
        loss = self.layers(batch).square().mean()
        self.seen.append([batch.tolist(), loss.item()])
        return loss

    def on_train_batch_end(self, *ignored):
        if self.trainer.global_step == self.stop:
            raise KeyboardInterrupt

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

def fit(folder, stop, rank):
    # As many do: dropout and augmentation differ from rank to rank.
    lightning.seed_everything(5 + rank, verbose=False)
    module, callback = Module(stop), stallscope.lightning.CheckpointCallback(folder, every=1)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback, Written()], logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.filterwarnings("always", "The sampler does not give")
        try:
            trainer.fit(module, stallscope.DataLoader(Data(), batch_size=4, shuffle=True))
        except (KeyboardInterrupt, SystemExit):
            pass
    messages = [str(one.message) for one in warned if "sampler" in str(one.message)]
    start = callback.start and callback.start.step
    os.write(1, (json.dumps({"rank": rank, "start": start, "seen": module.seen, "warned": messages}) + chr(10)).encode())

for job, port in zip(sys.argv[1::2], sys.argv[2::2]):
    folder, stop = job.split(":")
    children = []
    for rank in range(2):
        children.append(os.fork())
        if not children[-1]:
            of_rank = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
            of_job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "1"}
            os.environ.update({name: str(value) for name, value in {**of_rank, **of_job}.items()})
            fit(folder, int(stop), rank)
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)
"""


def fits(folder, *jobs):
    """What the ranks of each job printed, by rank; a job is a folder and the step that it ends after (0: none)."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in jobs]
    given = [part for job, one in zip(jobs, sockets) for part in (f"{folder}/{job}", str(one.getsockname()[1]))]
    for one in sockets:
        one.close()
    command = [needs("lightning"), "-c", SCRIPT, *given]
    done = subprocess.run(command, env=environment(None, PYTHONPATH=str(PACKAGE)), cwd=folder, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 2 * len(jobs), done.stderr
    return [sorted(lines[at : at + 2], key=lambda one: one["rank"]) for at in range(0, len(lines), 2)]


def test_each_rank_goes_on_where_it_was(tmp_path):
    whole, cut, resumed = fits(tmp_path, "whole:0", "cut:3", "cut:0")
    for rank in range(2):
        start = resumed[rank]["start"]
        assert start in (2, 3) and len(cut[rank]["seen"]) == 3
        assert resumed[rank]["seen"] == whole[rank]["seen"][start:] and not resumed[rank]["warned"]
