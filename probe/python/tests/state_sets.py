"""Data sets as people write them: all that they hold and use has a digest. A module of its own: other processes import it."""

import collections
import dataclasses
import enum
import functools
import hashlib
import io
import json
import logging
import math
import os
import pickle
import random
import re
import struct
import sys
import warnings
import zlib
from pathlib import Path
from typing import Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

log = logging.getLogger(__name__)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
NUMBER = re.compile(r"\d+")


class Split(enum.Enum):
    TRAIN = "train"
    TEST = "test"


@dataclasses.dataclass
class Settings:
    size: int = 32
    split: Split = Split.TRAIN
    mean: tuple = MEAN
    extra: dict = dataclasses.field(default_factory=dict)


def normalised(image):
    image = torch.as_tensor(np.ascontiguousarray(image), dtype=torch.float32) / 255
    return (image - torch.tensor(MEAN)) / torch.tensor(STD)


class Images(Dataset):
    """Folders of classes."""

    def __init__(self, root="/data", transform=None):
        self.root = root or os.environ["DATA"]
        self.classes = ["cat", "dog"]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples = [(os.path.join(self.root, self.classes[n % 2], f"{n}.jpg"), n % 2) for n in range(3000)]
        self.allowed = set(SUFFIXES)
        self.transform = transform
        self.settings = Settings()

    def __len__(self):
        return len(self.samples)

    def fetch(self, index):
        path, label = self.samples[index]
        if os.path.splitext(path)[1].lower() not in SUFFIXES:
            raise ValueError(f"{path} is no image")
        log.debug("reads %s", path)
        with open(path, "rb") as file:
            return struct.pack("<q", label) + file.read()

    @staticmethod
    def _label(data):
        return struct.unpack("<q", data[:8])[0]

    def decode(self, data):
        from PIL import Image

        image = Image.open(io.BytesIO(data[8:])).convert("RGB")
        image = image.resize((self.settings.size, self.settings.size), Image.BILINEAR)
        return normalised(np.asarray(image)), self._label(data)

    def __getitem__(self, index):
        image, label = self.decode(self.fetch(index))
        return (image if self.transform is None else self.transform(image)), label

    def download(self):
        exec(os.environ.get("HOOK", ""))


class Transformed(Images):
    def __init__(self):
        from torchvision import transforms

        crop = [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip()]
        scale = [transforms.ConvertImageDtype(torch.float32), transforms.Normalize(MEAN, STD)]
        clamp = transforms.Lambda(functools.partial(torch.clamp, min=0))
        super().__init__(transform=transforms.Compose([*crop, *scale, clamp]))


class Mapped(Dataset):
    """Rows of an array."""

    def __init__(self):
        self.rows = np.arange(12_000, dtype=np.float32).reshape(1000, 12)
        self.labels = torch.arange(1000)
        self.weights = np.ones(3)[::2]
        self.generator = np.random.default_rng(3)

    def __len__(self):
        return len(self.rows)

    def fetch(self, index):
        return self.rows[index].tobytes() + np.int64(self.labels[index].item()).tobytes()

    def decode(self, data):
        row = np.frombuffer(data, dtype=np.float32, count=12).copy()
        noise = torch.randn(12) * math.sqrt(0.1) + random.random()
        return F.relu(torch.from_numpy(row) + noise), int(np.frombuffer(data[-8:], dtype=np.int64)[0])


class Vocabulary:
    UNKNOWN = 0
    __slots__ = ("words", "counts")

    def __init__(self, words):
        self.words = {word: number for number, word in enumerate(words, 1)}
        self.counts = collections.Counter(words)

    def __getitem__(self, word):
        return self.words.get(word, self.UNKNOWN)


class Texts(Dataset):
    """Lines of JSON."""

    cache: Optional[dict] = None

    def __init__(self, path="/data/lines.jsonl"):
        self.path = Path(path)
        self.offsets = list(range(0, 100_000, 50))
        self.vocabulary = Vocabulary("to be or not to be".split())
        self.order = collections.OrderedDict(a=1, b=2)
        self.by_length = collections.defaultdict(list, {2: ["to", "be"]})

    def __len__(self):
        return len(self.offsets)

    @property
    def folder(self):
        return self.path.parent

    def fetch(self, index):
        with self.path.open("rb") as file:
            file.seek(self.offsets[index])
            line = file.readline()
        if not line.strip():
            warnings.warn(f"{self.folder} has an empty line", stacklevel=2)
        return zlib.compress(line)

    def decode(self, data):
        outcome = json.loads(zlib.decompress(data))
        words = [word for word in NUMBER.sub("#", outcome["text"]).split() if word not in {"a", "the"}]
        return torch.tensor([self.vocabulary[word] for word in words]), hashlib.sha1(data).hexdigest()


class Module(Dataset):
    """With a model that scales what it gives."""

    def __init__(self):
        torch.manual_seed(1)
        self.scale = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).requires_grad_(False).eval()
        self.steps = [normalised, functools.partial(pow, exp=2), str.upper, np.sqrt, torch.relu]
        self.kind = torch.float32, np.dtype("f4"), torch.device("cpu"), slice(1, 2), range(9), Split.TEST
        self.random = random.Random(5)

    def __len__(self):
        return 10

    @torch.no_grad()
    def fetch(self, index):
        return self.scale(torch.full((4,), float(index), dtype=self.kind[0])).numpy().tobytes()

    def decode(self, data):
        return torch.frombuffer(bytearray(data), dtype=torch.float32)


SETS = {"images": Images, "mapped": Mapped, "texts": Texts, "module": Module}
try:
    import torchvision  # noqa: F401

    SETS["transformed"] = Transformed
except ImportError:
    pass
try:
    import pandas as pd

    class Frame(Dataset):
        def __init__(self):
            self.frame = pd.DataFrame({"path": [f"/data/{n}" for n in range(50)], "label": range(50)})

        def __len__(self):
            return len(self.frame)

        def fetch(self, index):
            row = self.frame.iloc[index]
            return pickle.dumps((row["path"], int(row["label"])))

        def decode(self, data):
            return pickle.loads(data)

    SETS["frame"] = Frame
except ImportError:
    pass


def digest_of(dataset):
    """Its digest, or why there is none that holds for other processes."""
    from stallscope.data.cache.keys import fingerprint

    state = fingerprint.state_of(dataset)
    return state.why or (state.digest + state.drawn).hex()


def main():
    """In a process of its own: of data sets that are made here, and of pickled ones from standard input."""
    sent = pickle.load(sys.stdin.buffer)
    print(json.dumps({name: [digest_of(made()), digest_of(sent[name])] for name, made in SETS.items()}))


if __name__ == "__main__":
    # As others import it.
    import state_sets

    state_sets.main()
