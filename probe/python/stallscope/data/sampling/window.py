"""How reuse divides a cache: what of it is pinned, and the window through which everything else rolls."""

import os

from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.cache import sandbox, split

# Sample sizes differ, and some of the cache is under way.
_FILLED = 0.95
_PINNED, _PINNED_OF_LARGE, _LARGE = 0.5, 0.9, 0.5
# A window of fewer batches repeats samples within few batches.
_LEAST_BATCHES = 8
_LEAST_SHARE_OF_MANY_USES = 0.05
# Fewer epochs than these lose accuracy by so many uses.
_EPOCHS = {2: 10, 3: 20}
_PROBES = 16


def settled(order, seed, share_of_cache):
    """Kind, seed and parameters of the draws; and a sentence, without its beginning, where it is not as was asked."""
    plain = {"kind": "plain", "seed": seed}
    uses, epochs, why = order.requested["uses"], order.requested["epochs"], None
    if epochs is not None:
        long_enough = max([least for least in _EPOCHS if epochs >= _EPOCHS[least]], default=1)
        if epochs < max(_EPOCHS.values()) and long_enough < uses:
            why = f"uses samples {long_enough} times instead of {uses}: {epochs} epochs are few, and would cost accuracy"
            uses = long_enough
    if uses == 1:
        return plain, why
    share = order.requested["cache_share"]
    if share is None:
        try:
            share = share_of_cache() if share_of_cache is not None else None
        except Exception as error:
            if raised_by_signal(error):
                raise
            return plain, f"goes on as a plain shuffle: {error}"
    if share is None:
        return plain, "goes on as a plain shuffle: there is no cache"
    if share >= 1:
        return plain, "goes on as a plain shuffle: the cache holds the whole data set"
    pinned, window = divided(share * _FILLED, uses, order.samples, order.batch_size * order.ranks.count)
    if window <= 0:
        least = _least(uses, order.samples, order.batch_size * order.ranks.count) / order.samples
        return plain, (
            f"goes on as a plain shuffle: it needs a cache of {least / _FILLED:.0%} of the data set, that is of "
            f"{_LEAST_BATCHES} batches, and this one holds {share:.1%}"
        )
    return {"kind": "reuse", "seed": seed, "uses": uses, "window_share": window, "pinned_share": pinned}, why


def divided(share, uses, samples, batch_size):
    """Shares of the samples that are pinned and in the window; a window of 0: none fits."""
    pinned = share * (_PINNED_OF_LARGE if share >= _LARGE else _PINNED)
    least = _least(uses, samples, batch_size) / samples
    if share < least:
        return 0.0, 0.0
    window = max(share - pinned, least)
    return share - window, window


def _least(uses, samples, batch_size):
    return max(_LEAST_BATCHES * batch_size, _LEAST_SHARE_OF_MANY_USES * samples if uses > 2 else 0)


def share_of(dataset, start_method, capacity_bytes):
    """The share of `dataset` that so many bytes hold, by some of its samples; RuntimeError where it is unknown."""
    outcome = sandbox.tried(_sizes, dataset, start_method)
    if "why" in outcome:
        raise RuntimeError(f"how large samples are is not known: {outcome['why']}")
    sizes = outcome["sizes"]
    return capacity_bytes * len(sizes) / max(1, sum(sizes)) / max(1, len(dataset))


def _sizes(dataset):
    base, length = split.base_of(dataset), len(dataset)
    indices = sorted({round((length - 1) * probe / (_PROBES - 1)) for probe in range(_PROBES)})
    sizes = []
    for index in indices:
        if split.has_parts(base):
            sizes.append(len(base.fetch(split.base_index(dataset, index))))
            continue
        paths = split._Watch(dataset, index).paths
        if not paths or None in paths:
            return {"why": f"sample {index} does not come from files alone"}
        sizes.append(sum(os.stat(path).st_size for path in set(paths)))
    return {"sizes": sizes}
