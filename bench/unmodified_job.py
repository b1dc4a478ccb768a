"""An ordinary training script, which `bench/cache_unmodified.py` runs: torchvision's ImageFolder, torch's DataLoader.

usage: unmodified_job.py FOLDER EPOCHS [PIL|cv2]; prints after each epoch the sum of its losses, exactly. With cv2 its C code opens the files.
"""

import sys

import torch
import torchvision
from torchvision import transforms


def by_cv2(path):
    import cv2
    from PIL import Image

    return Image.fromarray(cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB))


def main():
    folder, epochs = sys.argv[1], int(sys.argv[2])
    opened_by = by_cv2 if sys.argv[3:] == ["cv2"] else torchvision.datasets.folder.default_loader
    torch.manual_seed(0)
    torch.set_num_threads(1)
    augmented = transforms.Compose([transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    dataset = torchvision.datasets.ImageFolder(folder, augmented, loader=opened_by)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(len(dataset.classes)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        total = 0.0
        for images, labels in loader:
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimiser.step()
            total += loss.item()
        print(total.hex(), flush=True)


if __name__ == "__main__":
    main()
