"""Which samples a loader draws, as its user chose: the names, their options, and what they need of a loader."""

import inspect

import torch.utils.data

from .draw_order import Order
from .ranks import Ranks
from .substitution import Substitution

NAMES = ("plain", "importance", "reuse", "iis", "shade")
# By sampling: what says which samples the pool keeps.
POLICIES = {"plain": "minio", "importance": "min", "reuse": "min", "iis": "icache", "shade": "shade"}
# Those that draw some samples more often than others.
WEIGHTED = ("importance", "iis", "shade")
# Those of which some draws are of low importance and the next ones known, so that packages can have them.
PACKED = ("importance", "iis")

_FOR_ALL = ("num_replicas", "rank")
_OPTIONS = {
    "plain": (),
    "importance": (*_FOR_ALL, "labels", "substitute"),
    "reuse": (*_FOR_ALL, "uses", "epochs", "cache_share"),
    "iis": (*_FOR_ALL, "labels", "substitute"),
    "shade": (*_FOR_ALL, "labels", "substitute"),
}
# Why others are given in no sample's place.
_ALL_DRAWN = {"plain": "gives torch's draws, sample by sample", "reuse": "uses each sample equally often"}
_SAMPLES = 2**32 - 2


def arranged(sampling, options, has_cache, args, kwargs):
    """The order in which a loader with torch's arguments `args` and `kwargs` draws, None for torch's own; and these
    arguments as torch is to have them. ValueError where the sampling cannot be had."""
    if sampling not in NAMES:
        raise ValueError(f"sampling={sampling!r}: there are {_listed(NAMES)}")
    options = _checked(sampling, options)
    if sampling == "plain":
        return None, args, kwargs
    given = _given(args, kwargs)
    if "dataset" not in given:
        # torch says so.
        return None, args, kwargs
    samples = _samples(sampling, given["dataset"])
    sampler = given.get("sampler")
    distributed = isinstance(sampler, torch.utils.data.DistributedSampler)
    if given.get("batch_sampler") is not None or (sampler is not None and not distributed):
        raise ValueError(f"sampling={sampling!r} draws by itself: leave out sampler= and batch_sampler=")
    if (given.get("shuffle") is False and sampler is None) or (distributed and not sampler.shuffle):
        raise ValueError(f'sampling={sampling!r} draws in random order: use shuffle=True, or sampling="plain"')
    if given.get("in_order") is False:
        raise ValueError(f"sampling={sampling!r} needs batches in order: leave out in_order=False")
    if sampling == "reuse" and not has_cache:
        raise ValueError(
            'sampling="reuse" uses samples again while they are in the cache: say cache="8GiB", or as much as there is'
        )
    labels, substitute = options.get("labels"), options.get("substitute", 0)
    classes = None
    if sampling == "importance" or substitute or labels is not None:
        classes = _classes(given["dataset"], labels, samples)
    if substitute:
        _can_substitute(has_cache, classes, samples)
    ranks = Ranks(options, sampler if distributed else None)
    if ranks.of_others and sampling != "reuse":
        raise ValueError(
            f"sampling={sampling!r} needs torch.distributed among {ranks.count} ranks, which tell each other losses"
        )
    batch_size = given.get("batch_size", 1)
    order = Order(
        sampling,
        samples,
        batch_size=1 if batch_size is None else batch_size,
        drop_last=bool(given.get("drop_last", False)),
        generator=given.get("generator"),
        ranks=ranks,
        uses=options.get("uses", 2),
        epochs=options.get("epochs"),
        cache_share=options.get("cache_share"),
        classes=classes if sampling == "importance" else None,
        substitution=Substitution(substitute, classes) if substitute else None,
    )
    given["sampler"] = order
    given.pop("shuffle", None)
    return order, (), given


def _given(args, kwargs):
    """torch's arguments by name."""
    bound = inspect.signature(torch.utils.data.DataLoader.__init__).bind_partial(None, *args, **kwargs)
    given = dict(bound.arguments)
    given.pop("self", None)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    return given


def _checked(sampling, options):
    options = dict(options or {})
    _check_substitute(sampling, options)
    known = _OPTIONS[sampling]
    for name in options:
        if name not in known:
            there = f"there are {_listed(known)}" if known else "it has none"
            raise ValueError(f"sampling_options: {sampling!r} has no {name!r}; {there}")
    whole = {"num_replicas": (1, None), "rank": (0, None), "uses": (1, 5), "epochs": (1, None)}
    for name, (least, most) in whole.items():
        value = options.get(name)
        if value is None:
            options.pop(name, None)
        elif type(value) is not int or value < least or (most is not None and value > most):
            to = f"from {least} to {most}" if most is not None else f"of at least {least}"
            raise ValueError(f"sampling_options: {name}={value!r} has to be a whole number {to}")
    share = options.get("cache_share")
    if share is not None and not (isinstance(share, (int, float)) and 0 < share <= 1):
        raise ValueError(f"sampling_options: cache_share={share!r} has to be a number above 0 and up to 1")
    return options


def _check_substitute(sampling, options):
    share = options.get("substitute", 0)
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise ValueError(f"sampling_options: substitute={share!r} has to be a share of the draws, from 0 to 1")
    if not share:
        options.pop("substitute", None)
    elif sampling in _ALL_DRAWN:
        raise ValueError(
            f"sampling_options: sampling={sampling!r} {_ALL_DRAWN[sampling]}, and so gives none in another's place: "
            f"leave out substitute=, or use {_listed(WEIGHTED)}"
        )


def _can_substitute(has_cache, classes, samples):
    if not has_cache:
        raise ValueError(
            'sampling_options: substitute= gives samples out of the cache: say cache="8GiB", or as much as there is'
        )
    if classes is None:
        raise ValueError(
            "sampling_options: substitute= gives a sample of the same class: say labels=, a class for each of "
            f"{samples} samples and at most one class for ten of them, or use a data set that has such targets"
        )


def _samples(sampling, dataset):
    others = [getattr(torch.utils.data, name, ()) for name in ("IterableDataset", "MapDataPipe")]
    try:
        samples = None if isinstance(dataset, tuple(one for one in others if one)) else len(dataset)
    except TypeError:
        samples = None
    if samples is None:
        raise ValueError(f"sampling={sampling!r} needs a data set whose samples have an index, and a length")
    if not 0 < samples <= _SAMPLES:
        raise ValueError(f"sampling={sampling!r} needs between 1 and {_SAMPLES} samples, here are {samples}")
    return samples


def _classes(dataset, labels, samples):
    """The class of each sample by number, from what its user or the data set itself says; None where nobody does.

    Labels of which there are many different ones are no classes."""
    found = _targets(dataset) if labels is None else labels
    if found is None:
        return None
    try:
        found = found.tolist() if hasattr(found, "tolist") else list(found)
        numbers = {}
        classes = [numbers.setdefault(label, len(numbers)) for label in found]
    except TypeError:
        classes, numbers = [], {}
    if labels is not None and len(classes) != samples:
        raise ValueError(f"sampling_options: labels= has to have one label for each of {samples} samples")
    return classes if len(classes) == samples and len(numbers) * 10 <= samples else None


def _targets(dataset):
    if type(dataset) is not torch.utils.data.Subset:
        return getattr(dataset, "targets", None)
    inner = _targets(dataset.dataset)
    try:
        return None if inner is None else [inner[index] for index in dataset.indices]
    except (TypeError, IndexError, KeyError):
        return None


def _listed(names):
    return ", ".join(repr(name) for name in names)
