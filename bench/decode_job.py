"""A loader of 224 x 224 samples in one of several ways, an epoch for each line that it reads: the job of `make bench-decode`.

usage: decode_job.py WAY FOLDER CPUS; FOLDER has `files`, `pack` and `set.beton`. `decode_job.py write FOLDER` writes the last of these, with FFCV.
"""

import json
import os
import sys
import time
from pathlib import Path

SIZE, BATCH = 224, 64


def files(folder, workers, loader=None, as_tensors=False):
    """torchvision's folder, cropped by its transforms."""
    import torch
    import torchvision
    from torchvision import transforms

    steps = [transforms.RandomResizedCrop(SIZE, antialias=True), transforms.RandomHorizontalFlip()]
    steps += [] if as_tensors else [transforms.PILToTensor()]
    given = {} if loader is None else {"loader": loader}
    dataset = torchvision.datasets.ImageFolder(folder / "files", transforms.Compose(steps), **given)
    return torch_loader(torch, dataset, workers)


def torch_loader(torch, dataset, workers):
    kept = {"persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}
    return torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, **kept)


def as_tensor(path):
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


def packed(folder, workers, **given):
    sys.path.insert(0, str(Path(__file__).parents[1] / "target" / "python"))
    import torch

    import stallscope

    return torch_loader(torch, stallscope.PackedImages(folder / "pack", size=SIZE, **given), workers)


def ffcv(folder, cpus):
    from ffcv.fields.decoders import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage

    pictures = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip(), ToTensor(), ToTorchImage()]
    return Loader(
        str(folder / "set.beton"),
        batch_size=BATCH,
        num_workers=cpus,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": pictures, "label": [IntDecoder(), ToTensor()]},
    )


def write(folder):
    """FFCV's file of the same pictures, which it encodes anew, at the same quality."""
    import torchvision
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter
    from photos import QUALITY

    dataset = torchvision.datasets.ImageFolder(folder / "files")
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=QUALITY), "label": IntField()}
    DatasetWriter(str(folder / "set.beton"), fields, num_workers=1).from_indexed_dataset(dataset)


def read_bytes():
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def main():
    if sys.argv[1] == "write":
        return write(Path(sys.argv[2]))
    way, folder, cpus = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
    # On one CPU a worker would only take turns with its trainer.
    workers = cpus if cpus > 1 else 0
    ways = {
        "pillow": lambda: files(folder, workers),
        "pillow-simd": lambda: files(folder, workers),
        "torchvision": lambda: files(folder, workers, as_tensor, as_tensors=True),
        "ffcv": lambda: ffcv(folder, cpus),
        "ours": lambda: packed(folder, 0),
        "ours-workers": lambda: packed(folder, workers),
        "ours-scaled": lambda: packed(folder, 0, scaled=True),
    }
    import torch

    torch.set_num_threads(1)
    loader = ways[way]()
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for _ in sys.stdin:
        before, began_s, samples = read_bytes(), time.monotonic(), 0
        for pictures, _ in loader:
            assert tuple(pictures.shape[1:]) == (3, SIZE, SIZE) and pictures.dtype == torch.uint8, pictures.shape
            samples += len(pictures)
        epoch_s = time.monotonic() - began_s
        print(json.dumps({"epoch_s": epoch_s, "samples": samples, "read_bytes": read_bytes() - before}), flush=True)


if __name__ == "__main__":
    main()
