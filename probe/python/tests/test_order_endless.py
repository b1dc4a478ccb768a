"""Samplers that never end, under loaders that keep one iterator for the whole run: what is seen of their order, and when."""

import pytest
from collector import PACKAGE  # noqa: F401, which puts the staged package on the path

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from drawing import ITEMS, Iterator, draw  # noqa: E402
from torch.utils import data  # noqa: E402

from stallscope._hooks import knobs, order  # noqa: E402


class Repeating:
    """Begins its sampler again and again, for an iterator that is kept for the whole run."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


@pytest.mark.parametrize("late", [False, True], ids=["in sequence", "drawn anew in each pass"])
def test_a_sampler_that_never_ends_is_watched_for_two_passes_and_who_waits_for_that_hears_of_it(late):
    loader = data.DataLoader(ITEMS, batch_sampler=Repeating(data.DataLoader(ITEMS, batch_size=4, shuffle=late).batch_sampler))
    found, iterator, heard = order.of(loader), Iterator(loader), []
    found.waiting = lambda: heard.append(True)
    for _ in range(5):
        draw(iterator)
    assert (found.draws_late, found.was_watched, knobs.later) == (False, False, [])
    for _ in range(6):
        draw(iterator)
    assert (found.draws_late, found.was_watched, len(knobs.later)) == (late, not late, 1)
    # In the next look of training.
    knobs.take_up()
    assert (heard, knobs.later) == ([True], [])


def test_how_long_a_pass_takes_is_not_known_of_a_sampler_that_no_other_is_in():
    class Own:
        def __iter__(self):
            while True:
                yield [0]

    loader = data.DataLoader(ITEMS, batch_sampler=Own())
    found, iterator = order.of(loader), Iterator(loader)
    for _ in range(100):
        draw(iterator)
    assert (found.draws_late, found.was_watched) == (False, False)
