"""Optimisers that a Checkpointer was given and that step no more: a script may have put another one in the place of one, which nobody saves."""

import weakref

import torch

# Steps without one of the optimiser's. A scaler passes over some as it looks for its scale.
_STEPS = 10


class Idle:
    """Of one Checkpointer, which looks as it saves. `objects`: by name."""

    def __init__(self, objects):
        self._optimizers = {name: one for name, one in objects.items() if isinstance(one, torch.optim.Optimizer)}
        # By name: what its state was, and at which step that was first seen.
        self._seen = {}

    def found(self, step):
        """Name -> steps for which it has not stepped, of those that had."""
        found = {}
        for name, one in self._optimizers.items():
            state = [value for kept in one.state.values() for value in (kept.values() if isinstance(kept, dict) else [kept])]
            before, since = self._seen.get(name, ([], step))
            if step < since or len(before) != len(state) or not all(was(value) for was, value in zip(before, state)):
                self._seen[name] = [_look(value) for value in state], step
            elif state and step - since >= _STEPS:
                found[name] = step - since
        return found


def _look(value):
    """Whether it is given the same again, with nothing written to it. Holds no tensor, and waits for no device."""
    if not isinstance(value, torch.Tensor):
        return lambda now: now is value or (isinstance(value, (int, float)) and now == value)
    reference, version = weakref.ref(value), _version(value)
    return lambda now: now is reference() and _version(now) == version


def _version(tensor):
    # One of inference mode counts none.
    return 0 if tensor.is_inference() else tensor._version
