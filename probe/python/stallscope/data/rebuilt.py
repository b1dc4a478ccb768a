"""A loader of torch's made anew with a cache, for the same callers: the same arguments, and the same sampler object."""

import torch.utils.data

from .loader import DataLoader

_KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "in_order",
)  # fmt: skip


class CannotBe(Exception):
    """A sentence, without its end, that says why it has no cache."""


def remade(loader, **options):
    """`loader`, a DataLoader of torch's own class, as one of ours with `options`; CannotBe."""
    if type(loader) is not torch.utils.data.DataLoader:
        raise CannotBe(f"it is a {type(loader).__name__}, and no DataLoader of torch's own class")
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        raise CannotBe("its samples have no index")
    # What an older torch does not know it does not have.
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if getattr(loader, "pin_memory_device", ""):
        kept["pin_memory_device"] = loader.pin_memory_device
    if loader.batch_sampler is not None:
        kept["batch_sampler"] = loader.batch_sampler
    else:
        kept["batch_size"], kept["sampler"] = None, loader.sampler
    return DataLoader(loader.dataset, **kept, **options)
