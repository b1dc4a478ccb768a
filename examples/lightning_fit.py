"""Lightning tells C++ headers from Python sources, both of which come with torch, by how often each byte occurs.

stallscope run -- python lightning_fit.py [FOLDER]

Checkpoints go to FOLDER; `fit()` goes on from the newest.
"""

import sys
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.utils.data import Dataset

import stallscope.lightning


class Sources(Dataset):
    """A file a sample: how often it has each byte, and whether it is Python's."""

    def __init__(self, folder, per_kind=400):
        kinds = [sorted(path for path in folder.rglob(name) if path.stat().st_size) for name in ("*.h", "*.py")]
        self.paths = [path for kind in kinds for path in kind[:per_kind]]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        return torch.bincount(text, minlength=256) / len(text), float(self.paths[index].suffix == ".py")


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))

    def training_step(self, batch, number):
        shares, is_python = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(shares), is_python.float())
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "lightning-checkpoints"
    dataset = Sources(Path(torch.__file__).parent)
    loader = stallscope.DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, cache="64MiB")
    saves = stallscope.lightning.CheckpointCallback(folder)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[saves], enable_checkpointing=False, logger=False)
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
