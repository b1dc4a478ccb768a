"""How well batches are to be mixed, and in how much memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from stallscope import _native
from stallscope.data.cache import budget


class Shuffle:
    """An order in which a pack's chunks are read whole, and its batches mixed as well as stated.

    Give it to `stallscope.DataLoader` as `shuffle=`, or to `shuffled()` of a packed data set for torch's own. docs/packs.md says
    what the design effect is and which orders there are.

    Args:
        max_design_effect: How many times as much the number of samples of a class may vary from batch to batch, on average, as
            if each sample were drawn by itself; at least 1.
        memory: Memory for chunks, for each rank: bytes, or text such as "2GiB".
        seed: Another one gives other orders. The same on all ranks.
        labels: A class for each sample, any numbers or texts. Omitted, those of the pack: its topmost folders.

    Raises:
        ValueError: The design effect is below 1, or the memory is not a size or more than there is.

    Example:
        >>> import stallscope
        >>> dataset = stallscope.PackedDataset("texts.pack")
        >>> shuffle = stallscope.Shuffle(max_design_effect=1.05, memory="64MiB")
        >>> loader = stallscope.DataLoader(dataset, batch_size=1, shuffle=shuffle)
        >>> sorted(text for batch in loader for text in batch)
        [b'bonjour', b'hello']
        >>> loader.sampler.chunks
        1
    """

    def __init__(
        self,
        max_design_effect: float = 1.05,
        memory: int | str = "1GiB",
        *,
        seed: int = 0,
        labels: Sequence | None = None,
    ) -> None:
        if isinstance(max_design_effect, bool) or not isinstance(max_design_effect, (int, float)) or not max_design_effect >= 1:
            raise ValueError(f"Shuffle: max_design_effect={max_design_effect!r} has to be a number of at least 1, which is a full shuffle's")
        self.max_design_effect = float(max_design_effect)
        self.memory = budget.parse(memory, "memory")
        self.seed = operator.index(seed) % 2**64
        self.labels = labels

    def __repr__(self):
        memory = _native.memory_in_words(self.memory)
        return f"Shuffle(max_design_effect={self.max_design_effect}, memory={memory!r}, seed={self.seed})"


def orders_of(shuffle, pack, images):
    """The native orders of a data set; ValueError where there are no classes whose mix could be stated."""
    labels = shuffle.labels
    if labels is not None:
        labels = labels.tolist() if hasattr(labels, "tolist") else list(labels)
        samples = len(pack) if images is None else len(images)
        if len(labels) != samples:
            raise ValueError(f"Shuffle: labels= has {len(labels)} labels, here are {samples} samples")
        numbers: dict = {}
        labels = [numbers.setdefault(label, len(numbers)) for label in labels]
    orders = _native.PackShuffle(pack, images, labels, shuffle.memory)
    samples, _, classes, _ = orders.facts()
    if samples and classes < 2:
        raise ValueError(
            "Shuffle: all samples of the pack are of one class, so that nobody can tell how well batches are mixed: give labels=, a class for "
            "each sample"
        )
    return orders


def chosen(shuffle, orders, batch_size, ranks, workers):
    """From how many chunks a rank draws at a time: the fewest that do. ValueError where no number of them does."""
    samples, chunks, _, all_bytes = orders.facts()
    if not samples:
        return 1
    words = _native.memory_in_words
    batch = batch_size * ranks
    most = -(-chunks // ranks)
    window = orders.fewest(ranks, batch, shuffle.max_design_effect)
    stated = f"a design effect of at most {shuffle.max_design_effect:g} for batches of {batch} samples"
    if window is None:
        least = orders.predicted(ranks, most, batch)
        raise ValueError(
            f"Shuffle: no order of {chunks} chunks over {ranks} ranks has {stated}: state at least {_up(least)}, use smaller batches, or pack the data "
            "set anew without --in-order"
        )
    # Each worker makes a batch, and may be as many of them ahead of the slowest.
    under_way = workers * batch_size * all_bytes // samples
    needed = min(orders.bytes_of(window) + under_way, orders.bytes_of(chunks))
    if needed <= shuffle.memory:
        return window
    fitting = _most_that_fits(orders, most, shuffle.memory - under_way)
    ways = [f"give memory={_native.memory_to_hold(needed)!r}"]
    if fitting:
        ways.append(f"state max_design_effect={_up(orders.predicted(ranks, fitting, batch))}, which fits")
    if window > 1:
        ways.append("pack the data set anew without --in-order, so that one chunk at a time is enough")
    elif workers:
        ways.append("use fewer workers or smaller batches")
    raise ValueError(
        f"Shuffle: {stated} takes {words(needed)} of memory, {window} chunk{'s' if window > 1 else ''} at a time, and memory= is "
        f"{words(shuffle.memory)}: {', or '.join(ways)}"
    )


def _most_that_fits(orders, most, memory):
    """The largest window that so many bytes hold; 0: not one chunk."""
    fits, fails = 0, most + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if orders.bytes_of(middle) <= memory:
            fits = middle
        else:
            fails = middle
    return fits


def _up(effect):
    return f"{effect + 0.005:.2f}"

