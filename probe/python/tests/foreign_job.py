"""A job in which others hook torch, too: what stands in the way of hooks that count everything once.

usage: foreign_job.py finder|front|reload|warnings
"""

import importlib
import importlib.util
import io
import json
import sys
import warnings

how = sys.argv[1]
NAMES = {
    "torch.utils.data.dataloader": [
        ("_BaseDataLoaderIter", "__init__"),
        ("_BaseDataLoaderIter", "__next__"),
        ("_BaseDataLoaderIter", "_reset"),
        ("_MultiProcessingDataLoaderIter", "_try_put_index"),
        ("_DatasetKind", "create_fetcher"),
    ],
    "torch.serialization": [(None, "save")],
}


def wrap(module):
    """As many tools do: wrappers that do not look like what they wrap."""
    for class_name, name in NAMES[module.__name__]:
        owner = getattr(module, class_name) if class_name else module
        original = getattr(owner, name)
        static = isinstance(vars(owner)[name], staticmethod)

        def wrapper(*args, original=original, **kwargs):
            return original(*args, **kwargs)

        setattr(owner, name, staticmethod(wrapper) if static else wrapper)


class Loader:
    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        wrap(module)


class Finder:
    """Asks all finders, as import hooks of wrapt's and ddtrace's kind do."""

    busy = False

    def find_spec(self, name, path=None, target=None):
        if self.busy or name not in NAMES:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy = False
        spec.loader = Loader(spec.loader)
        return spec


if how == "finder":
    sys.meta_path.insert(1, Finder())
elif how == "front":
    sys.meta_path.insert(0, Finder())

import torch  # noqa: E402
import torch.utils.data.dataloader as dataloader  # noqa: E402

if how == "reload":
    wrap(dataloader)
    wrap(sys.modules["torch.serialization"])
    importlib.reload(sys.modules["torch.serialization"])
    importlib.reload(dataloader)
    importlib.reload(dataloader)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if how == "warnings":
            warnings.warn("of a sample", stacklevel=2)
        return torch.tensor([float(index)])


class Stream(torch.utils.data.IterableDataset):
    """Says that it is shorter than it is, which torch warns of."""

    def __len__(self):
        return 1

    def __iter__(self):
        return iter([torch.tensor([1.0])] * 4)


def train(workers):
    total = 0.0
    for batch in dataloader.DataLoader(Samples(), batch_size=2, num_workers=workers):
        total += float(batch.sum())
    file = io.BytesIO()
    sys.modules["torch.serialization"].save({"total": torch.tensor(total)}, file)
    return total


if how == "warnings":
    with warnings.catch_warnings(record=True) as outcome:
        warnings.simplefilter("always")
        loader = dataloader.DataLoader(Stream(), batch_size=1)
        len(loader)
        for _ in loader:
            pass
        train(0)
    print(json.dumps(sorted({(str(one.message)[:40], one.filename, one.lineno) for one in outcome})))
else:
    print(json.dumps([train(0), train(2)]))
