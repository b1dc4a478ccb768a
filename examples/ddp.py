"""Several ranks tell the strongest of eight waves, and save one checkpoint together.

stallscope run -- torchrun --standalone --nproc-per-node 2 ddp.py [FOLDER]

Checkpoints go to FOLDER, which all ranks have to see; started again, the ranks go on from the newest.
"""

import sys

import torch
from torch import distributed, nn
from torch.utils.data import Dataset, DistributedSampler

import stallscope

EPOCHS, BATCH_SIZE = 2, 32


class Waves(Dataset):
    """Sums of sines, and the frequency of the strongest: each sample is made by its index alone."""

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        loudness = torch.rand(8, generator=random)
        times = torch.linspace(0, 2 * torch.pi, 256)
        waves = torch.sin(times * torch.arange(1, 9)[:, None] + 7 * torch.rand(8, 1, generator=random))
        return (loudness[:, None] * waves).sum(0), loudness.argmax()


def main():
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = Waves()
    sampler = DistributedSampler(dataset)
    loader = stallscope.DataLoader(dataset, BATCH_SIZE, sampler=sampler, num_workers=1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    folder = sys.argv[1] if len(sys.argv) > 1 else "distributed-checkpoints"
    with stallscope.Checkpointer(folder, model=model, optimizer=optimizer, loader=loader) as checkpointer:
        start = checkpointer.restore()
        for epoch in range(start.epoch if start else 0, EPOCHS):
            sampler.set_epoch(epoch)
            for waves, strongest in loader:
                loss = nn.functional.cross_entropy(model(waves), strongest)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                checkpointer.step()
            if distributed.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        checkpointer.save(wait=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
