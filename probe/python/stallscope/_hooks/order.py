"""Whether the order of a loader's samples may depend on how far ahead of training it is asked for them.

A sampler that draws in mid-epoch, from generators that training draws from as well, gives another order where batches are
asked for earlier or later. torch's own samplers draw when they begin, or from a generator of their own. Of any other, the
process's generators are compared around each draw, for an epoch, before its loader's knobs take effect.
"""

import sys
import weakref

from .knobs import raised_by_signal

# Their samplers draw when they begin, or from generators of their own, unless they are given the process's.
_FRAMEWORKS = frozenset(
    ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "stallscope", "torch", "torchdata", "transformers")
)
# Under which samplers keep the ones that they are made of.
_WITHIN = ("sampler", "batch_sampler", "_sampler", "_batch_sampler")
_DEEPEST = 8

_orders: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


class Order:
    """What is known of one loader's order."""

    def __init__(self, loader):
        sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        samplers = list(_made_of(sampler))
        self.kinds = [type(one) for one in samplers]
        self.is_known = all(_is_known(one) for one in samplers)
        # A draw that was not an epoch's first moved one of the process's generators.
        self.draws_late = False
        # An epoch was watched to its end.
        self.was_watched = False

    def succeeds(self, former):
        """The script has made the loader anew."""
        if former is not self and former.kinds == self.kinds:
            self.draws_late |= former.draws_late
            self.was_watched |= former.was_watched


def of(loader):
    """The `Order` of a loader."""
    order = _orders.get(loader)
    if order is None:
        order = _orders[loader] = Order(loader)
    return order


def begin(iterator, loader):
    """`iterator` is about to draw an epoch's first index."""
    iterator.__dict__["_stallscope_order"] = of(loader)
    iterator.__dict__["_stallscope_drawn"] = False


class Draw:
    """An index that is being drawn of an order that is watched."""

    def __init__(self, order, iterator):
        from stallscope import _random

        self.order, self.iterator, self.capture = order, iterator, _random.capture
        self.before = self.capture(devices=False)

    def over(self):
        """It was drawn, or there was none."""
        drawn = self.iterator.__dict__
        try:
            if drawn["_stallscope_drawn"] and self.capture(devices=False) != self.before:
                self.order.draws_late = True
        except Exception as error:
            _unclear(self.order, error)
        drawn["_stallscope_drawn"] = True


def watch(iterator):
    """The `Draw` that begins now; None where nothing is to be watched."""
    order = iterator.__dict__.get("_stallscope_order")
    if order is None or order.is_known or order.was_watched or order.draws_late:
        return None
    try:
        return Draw(order, iterator)
    except Exception as error:
        _unclear(order, error)
        return None


def _unclear(order, error):
    """What cannot be compared may have been drawn."""
    if raised_by_signal(error):
        raise error
    order.draws_late = True


def _is_known(sampler):
    if isinstance(sampler, (list, tuple, range)):
        return True
    if type(sampler).__module__.partition(".")[0] not in _FRAMEWORKS:
        return False
    generator = getattr(sampler, "__dict__", {}).get("generator")
    return generator is None or generator is not sys.modules["torch"].default_generator


def _made_of(sampler, depth=0):
    yield sampler
    inside = getattr(sampler, "__dict__", {})
    for name in _WITHIN if depth < _DEEPEST else ():
        if inside.get(name) is not None:
            yield from _made_of(inside[name], depth + 1)
