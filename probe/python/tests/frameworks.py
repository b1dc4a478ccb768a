"""A small training job of a framework, whose loader is turned from outside while it runs.

usage: frameworks.py lightning|accelerate|transformers FOLDER; prints the samples that each epoch trained on. It trains slowly
until the folder UNTIL has a file "0".
"""

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH, EPOCHS = 480, 2, 2
STEP_S = 0.004

EPOCH = []


class Numbers(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"x": torch.tensor([float(index)]), "labels": torch.tensor([0.0])}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels=None):
        EPOCH.extend(int(value) for value in x.flatten())
        time.sleep(STEP_S if os.path.exists(os.path.join(os.environ["UNTIL"], "0")) else 5 * STEP_S)
        return {"loss": ((x * self.weight - labels) ** 2).mean()}


def trained():
    print(json.dumps({"trained": EPOCH}), flush=True)
    EPOCH.clear()


def lightning(folder):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, number):
            return self.model(**batch)["loss"]

        def on_train_epoch_end(self):
            trained()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    trainer = lightning.Trainer(
        max_epochs=EPOCHS, default_root_dir=folder, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Numbers(), batch_size=BATCH, num_workers=2))


def accelerate(folder):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = DataLoader(Numbers(), batch_size=BATCH, num_workers=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
        trained()


def transformers(folder):
    import transformers

    class Ends(transformers.TrainerCallback):
        def on_epoch_end(self, *_, **__):
            trained()

    class Ordered(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(Numbers())

    arguments = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS, use_cpu=True,
        dataloader_num_workers=2, save_strategy="no", report_to=[], logging_strategy="no", disable_tqdm=True,
        learning_rate=1e-9,
    )  # fmt: skip
    Ordered(Model(), arguments, train_dataset=Numbers(), callbacks=[Ends()]).train()


def main():
    torch.set_num_threads(1)
    {"lightning": lightning, "accelerate": accelerate, "transformers": transformers}[sys.argv[1]](sys.argv[2])


if __name__ == "__main__":
    main()
