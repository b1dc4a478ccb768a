"""A `Shuffle` among the arguments of a loader, and in its position."""

from stallscope.data.resume.random_sources import attribute_of
from stallscope.data.sampling.ranks import Ranks

from .shuffled import Shuffled


def in_chunks(shuffle, dataset, given, sampling):
    """torch's arguments `given`, with the sampler of a `Shuffle` in its place. ValueError where there can be none."""
    make = getattr(dataset, "shuffled", None)
    if make is None:
        raise ValueError(
            f"shuffle={shuffle!r} reads the chunks of a pack, and a {type(dataset).__name__} has none: use PackedImageFolder or PackedDataset, or "
            "shuffle=True"
        )
    if given.get("sampler") is not None or given.get("batch_sampler") is not None:
        raise ValueError("shuffle=Shuffle(...) draws by itself: leave out sampler= and batch_sampler=")
    if sampling != "plain":
        raise ValueError(f"sampling={sampling!r} draws by itself: leave out shuffle=Shuffle(...)")
    given = {name: value for name, value in given.items() if name != "shuffle"}
    batch_size = given.get("batch_size", 1)
    ranks = Ranks({}, None)
    given["sampler"] = sampler = make(
        shuffle,
        1 if batch_size is None else batch_size,
        rank=ranks.rank,
        world_size=ranks.count,
        num_workers=given.get("num_workers", 0),
    )
    if type(sampler) is Shuffled:
        sampler.is_of_group = True
        if given.get("prefetch_factor"):
            sampler.made_ahead(given.get("num_workers", 0), given["prefetch_factor"])
        if given.get("drop_last"):
            sampler.warn_of_dropped()
    return given


def of(loader):
    """The sampler of a loader that has a `Shuffle`; None of any other."""
    sampler = attribute_of(loader.batch_sampler, "sampler", loader.sampler)
    return sampler if type(sampler) is Shuffled else None


def about_to_iterate(loader):
    """Workers are about to be started. RuntimeError where there are other ranks than when the loader was made."""
    sampler = of(loader)
    if sampler is None:
        return
    now = Ranks({}, None).count
    # A group that is gone has left its ranks with their shares.
    if sampler.is_of_group and now not in (1, sampler.num_replicas):
        raise RuntimeError(
            f"shuffle=Shuffle(...): the loader was made for {sampler.num_replicas} rank{'s'[: sampler.num_replicas != 1]} and the process group has {now}, so "
            "that ranks would not divide the samples: make it after init_process_group"
        )
    sampler.serve()


def state(loader, is_under_way):
    """What of its sampler goes into a loader's position; None without a `Shuffle`. `is_under_way`: a pass is."""
    sampler = of(loader)
    if sampler is None:
        return None
    return {"at": sampler.position(is_under_way), "world": sampler.num_replicas, "batch_size": sampler.batch_size, "pack": sampler.version}


def taken_up(loader, state):
    """A loader's position `state` for this loader, whose sampler goes on there. With other ranks or batches it is one between
    two epochs, of which the first that follows is the rest of the one that was under way."""
    sampler, shuffled = of(loader), state.get("shuffled")
    if sampler is None or shuffled is None:
        return state
    at, batches, version = shuffled["at"], state["batches"], shuffled.get("pack")
    epoch = state["sampler_epoch"] if at is None else at["epoch"]
    is_same = (shuffled["world"], shuffled["batch_size"]) == (sampler.num_replicas, sampler.batch_size)
    if is_same or batches is None or at is None:
        sampler.go_on(epoch, at, batches or 0, state["samples"], version)
        return {**state, "batch_size": loader.batch_size}
    used = batches * shuffled["batch_size"] * shuffled["world"]
    start = min(state["samples"], at["start"] + used)
    sampler.go_on(epoch, {**at, "start": start}, 0, state["samples"], version)
    between = {"batches": None, "digest": 0, "begun": state["nth"], "batch_size": loader.batch_size, "sampler_epoch": epoch}
    return {**state, **between}
