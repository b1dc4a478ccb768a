"""Another sample of the same class in place of one that would have to be read, where the user allows it.

It is decided in the training process when a batch is asked for first, so that what goes to a worker is the sample that
is given, and every figure of the batch is of that one. The pool learns of draws alone.
"""

import operator
from array import array

import torch.utils.data

from stallscope import _native, _notices
from stallscope._hooks.knobs import raised_by_signal
from stallscope.data.cache.split import base_index
from stallscope.data.seeding.draws import UNKNOWN


class Substitution:
    """Of one order. `share`: of an epoch's draws, how many may be given another sample; `classes`: of each sample."""

    def __init__(self, share, classes):
        self.share = share
        self.classes = classes
        self.rules = None
        # Where samples are kept, and which numbers they have there if not their own.
        self.spaces, self.numbers = [], None
        self.dataset = None
        self.failed = False

    def settle(self, seed, ranks):
        mask = 2**64 - 1
        self.rules = _native.Substitutes(self.classes, self.share, seed & mask, ranks.rank, ranks.count)

    def look_into(self, store, dataset):
        """The cache that the loader has of `dataset` from now on; None: it has none."""
        self.spaces = [] if store is None else [one for one in (store.space, store.staging) if one is not None]
        if self.dataset is dataset:
            return
        self.dataset, self.numbers = dataset, None
        if type(dataset) is torch.utils.data.Subset and self.spaces:
            try:
                numbers = array("Q", [operator.index(base_index(dataset, one)) for one in range(len(dataset))])
                self.numbers = numbers.tobytes()
            except Exception as error:
                if raised_by_signal(error):
                    raise
                self._fail(error)

    def given(self, order, place, drawn, uses, first):
        """`uses`, or what is given for them: of what all ranks drew from `place` on, those from the `first` on."""
        if self.failed:
            return uses
        try:
            others = self.rules.batch(self.spaces, self.numbers, place, drawn, first, len(uses), order.handed)
        except Exception as error:
            if raised_by_signal(error):
                raise
            self._fail(error)
            return uses
        uses = list(uses)
        for number, index in others:
            drawn_use = uses[number - first]
            # Of the sample that is given no next use is passed here: the pool knows it by its own draws.
            uses[number - first] = type(drawn_use)(index, drawn_use.at, UNKNOWN, drawn_use.weight, drawn_use)
        return uses

    def _fail(self, error):
        self.failed = True
        _notices.warn(
            f"stallscope: no sample is given in another's place from now on: {type(error).__name__}: {error}",
            2,
        )

    # The position

    def state(self):
        return self.rules.save()

    def load(self, state):
        """`state`: None of a loader that gave no others, so that nobody knows what its epoch used."""
        if state is None:
            self.rules.begin_blind()
        else:
            self.rules.load(state)
