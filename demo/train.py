"""Trains a small convolutional network on a folder of images."""

import argparse
import hashlib
import itertools
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Numbered(datasets.ImageFolder):
    """Says which sample it is."""

    def __getitem__(self, index):
        return (*super().__getitem__(index), index)


def network(classes: int) -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *block(3, 16), *block(16, 32), *block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)
    )


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
    model.train()
    return right / len(loader.dataset)


def saver(folder, every, model, optimizer, table):
    """Saves at a fixed interval, as many scripts do; a job on machines that others may take away fails every ten minutes."""
    import stallscope

    return stallscope.Checkpointer(folder, model=model, optimizer=optimizer, state={"table": table}, every=every, mtbf="10m")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=0, help="more epochs until then")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps")
    parser.add_argument("--save-every", help="a time, such as 10s: a stallscope.Checkpointer in place of torch.save")
    parser.add_argument("--table-mb", type=int, default=0, help="MB of an embedding that is trained and saved along")
    parser.add_argument("--account", type=Path, help="a file for seconds of epochs, the order of samples and the losses")
    args = parser.parse_args()

    torch.manual_seed(0)
    # So small a network gains nothing from more threads, and the loader's workers need the other cores.
    torch.set_num_threads(1)
    normalize = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    augment = transforms.Compose(
        [transforms.RandomResizedCrop(64, scale=(0.5, 1)), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )
    plain = transforms.Compose([transforms.Resize(64), transforms.CenterCrop(64), transforms.ToTensor(), normalize])
    train_set = (Numbered if args.account else datasets.ImageFolder)(args.data / "train", augment)
    test_set = datasets.ImageFolder(args.data / "val", plain)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(test_set, args.batch_size, num_workers=args.workers)

    model = network(len(train_set.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # Of a large table each step changes a few rows, and a checkpoint has all of it.
    table = torch.zeros(args.table_mb * 4096, 64)
    checkpointer = saver(args.checkpoint.with_suffix(""), args.save_every, model, optimizer, table) if args.save_every else None
    step = 0
    until = time.monotonic() + 60 * args.minutes
    order, losses, seconds = hashlib.sha256(), hashlib.sha256(), []
    for epoch in itertools.count():
        if epoch >= args.epochs and time.monotonic() > until:
            break
        began = time.monotonic()
        for images, labels, *ids in train_loader:
            order.update(repr([one.tolist() for one in ids]).encode())
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item().hex().encode())
            step += 1
            table[step % max(len(table), 1) :][:1] += 1
            if checkpointer:
                checkpointer.step()
            elif step % args.checkpoint_every == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint)
        seconds.append(time.monotonic() - began)
        result = f"loss {loss.item():.3f}, accuracy {evaluate(model, test_loader):.1%}"
        print(f"epoch {epoch}: {seconds[-1]:.1f} s, {result}", flush=True)
    if args.account:
        account = {"seconds": seconds, "order of samples": order.hexdigest(), "losses": losses.hexdigest()}
        args.account.write_text(json.dumps(account))


if __name__ == "__main__":
    main()
