"""Trains a small CNN on a folder of JPEG files and keeps the files in a cache.

stallscope run -- python vision.py [FOLDER]

FOLDER has a folder of pictures for each class, as torchvision's ImageFolder wants it. Where it is missing, digits are drawn.
"""

import random
import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torchvision import datasets, transforms

import stallscope

EPOCHS, BATCH_SIZE = 3, 32


def draw_digits(folder, per_class=48):
    for digit in "0123456789":
        (folder / digit).mkdir(parents=True)
        for number in range(per_class):
            image = Image.effect_noise((32, 32), random.uniform(20, 60))
            at = random.randint(2, 14), random.randint(-2, 4)
            ImageDraw.Draw(image).text(at, digit, font=ImageFont.load_default(24), fill=random.randint(200, 255))
            image.rotate(random.uniform(-15, 15), fillcolor=128).save(folder / digit / f"{number}.jpg")


def network(classes):
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 16), *block(16, 32), *block(32, 64), nn.Flatten(), nn.LazyLinear(classes))


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "digits")
    if not folder.exists():
        draw_digits(folder)
    augment = transforms.Compose([transforms.Grayscale(), transforms.RandomCrop(32, padding=2), transforms.ToTensor()])
    dataset = datasets.ImageFolder(folder, augment)
    loader = stallscope.DataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=2, cache="64MiB")
    model = network(len(dataset.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        figures = loader.cache_figures()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {figures['hits']} hits and {figures['misses']} misses", flush=True)


if __name__ == "__main__":
    main()
