"""A small training job that uses all that we have: workers, the cache and its fetchers, checkpoints, random augmentation.

usage: job.py FOLDER STEPS: makes FOLDER/begun at its first batch, and at its end FOLDER/result.json with the batches that it
took and a digest of every loss and of the weights that it ends with. Where CHAOS is set, it does not end before FOLDER/struck
is there.
"""

import hashlib
import json
import os
import sys
import time
import warnings

import torch

sys.path.insert(0, os.environ["STALLSCOPE_PYTHON"])

import stallscope  # noqa: E402

SAMPLES, BYTES, BATCH = 160, 4096, 4


class Service(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def fetch(self, index):
        time.sleep(0.003)
        return index.to_bytes(4, "little") * (BYTES // 4)

    def decode(self, data):
        value = int.from_bytes(data[:4], "little") / SAMPLES
        return torch.full((8,), value) + torch.randn(8) * 0.1, torch.tensor([value**2])


def main():
    folder, steps = sys.argv[1], int(sys.argv[2])
    # That a cache or a checkpoint had to do without something is a warning, and no matter here.
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = stallscope.DataLoader(
        Service(), batch_size=BATCH, shuffle=True, num_workers=2, cache=SAMPLES * BYTES // 2, fetchers=2
    )
    checkpoints = os.path.join(folder, "checkpoints")
    checkpointer = stallscope.Checkpointer(
        checkpoints, model=model, optimizer=optimiser, loader=loader, every=15
    )
    digest, taken = hashlib.sha256(), 0
    while taken < steps:
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            digest.update(loss.item().hex().encode())
            taken += 1
            checkpointer.step()
            if taken == 1:
                open(os.path.join(folder, "begun"), "w").close()
            while taken == steps * 2 // 3 and "CHAOS" in os.environ and not os.path.exists(os.path.join(folder, "struck")):
                # However long a busy machine takes to strike.
                time.sleep(0.01)
            if taken == steps:
                break
    checkpointer.close()
    for one in model.state_dict().values():
        digest.update(bytes(one.contiguous().flatten().view(torch.uint8).tolist()))
    result = os.path.join(folder, "result.json")
    with open(result + ".new", "w") as file:
        json.dump({"digest": digest.hexdigest(), "batches": taken}, file)
    os.rename(result + ".new", result)


if __name__ == "__main__":
    main()
