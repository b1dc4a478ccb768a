"""Hugging Face's Trainer trains a tiny GPT-2 on bytes of the sources that come with Transformers, with a cache.

stallscope run -- python hf_trainer.py [FOLDER]

The Trainer's checkpoints go to FOLDER, when they are worth it.
"""

import sys
from pathlib import Path

import torch
import transformers
from torch.utils.data import Dataset

import stallscope.transformers

LENGTH = 128


class Sources(Dataset):
    """The beginning of a file a sample. `fetch` reads bytes, which the cache keeps; `decode` makes a sample of them."""

    def __init__(self, folder, files=240):
        self.paths = sorted(path for path in folder.rglob("*.py") if path.stat().st_size > LENGTH)[:files]

    def __len__(self):
        return len(self.paths)

    def fetch(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read(LENGTH)

    def decode(self, text):
        ids = torch.tensor(list(text))
        return {"input_ids": ids, "labels": ids}

    def __getitem__(self, index):
        return self.decode(self.fetch(index))


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "hf-checkpoints"
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = transformers.TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=16, dataloader_num_workers=2, use_cpu=True,
        save_strategy="no", logging_steps=5, report_to=[],
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config), arguments, train_dataset=Sources(Path(transformers.__file__).parent / "models"),
        callbacks=[stallscope.transformers.CheckpointCallback()],
    )  # fmt: skip
    stallscope.transformers.use_loader(trainer, cache="16MiB")
    trainer.train()


if __name__ == "__main__":
    main()
