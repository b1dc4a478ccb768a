"""The positions of a job's training loaders, one or several, as one."""

import itertools

import torch.utils.data

from stallscope.data.resume.between import Between
from stallscope.data.resume.given import position
from stallscope.data.resume.position import Positioned

from .errors import CheckpointError


def of(loader):
    """What keeps the position of `loader`: a DataLoader, or several in a list or by name in a dict; None of none."""
    if loader is None:
        return None
    if isinstance(loader, dict):
        return Loaders(loader)
    if isinstance(loader, (list, tuple)):
        return Loaders({str(at): one for at, one in enumerate(loader)})
    return position(loader)


def state_of(loader, trial):
    """The state of what of() gave. A `trial` asks those of ours alone: torchdata's makes its iterator when it is asked, for which it draws a seed
    earlier than the loop would."""
    if isinstance(loader, Loaders):
        return loader.state_dict(trial)
    return {} if trial and not isinstance(loader, Positioned) else loader.state_dict()


def may_be_tried(one):
    """Whether a trial may ask this object for its state."""
    return isinstance(one, Positioned) or not isinstance(one, torch.utils.data.DataLoader)


class Loaders:
    """Several loaders with what a single one has for the Checkpointer."""

    def __init__(self, loaders):
        if not loaders:
            raise ValueError("loader= has no loader in it: name those that training draws from, or leave it out")
        self.loaders = {str(name): position(one) for name, one in loaders.items()}

    def _call(self, method, *arguments):
        return [getattr(one, method)(*arguments) for one in self.loaders.values() if hasattr(one, method)]

    def hear_steps(self):
        self._call("hear_steps", Between())

    def stepped(self, by_hand=False):
        known = self._call("gave_since_step")
        # Of others nobody knows.
        of_others = any(known) or len(known) < len(self.loaders)
        self._call("stepped", by_hand, of_others)

    def steps_without(self):
        """Of all of them: they may take turns. None where that is not known of one."""
        steps = self._call("steps_without")
        return None if None in steps or len(steps) < len(self.loaders) else min(steps)

    def has_two_passes(self):
        return any(self._call("has_two_passes"))

    def has_order_elsewhere(self):
        return any(self._call("has_order_elsewhere"))

    def unkept(self):
        return list(dict.fromkeys(itertools.chain.from_iterable(self._call("unkept"))))

    def take_waited_ns(self):
        return sum(self._call("take_waited_ns"))

    def go_on_with(self, process):
        # By whichever is iterated first: the next one comes after what the first has drawn since.
        states, taken = [process], set()
        self._call("go_on_with", lambda: states.pop() if states else None, taken)

    def draws_again(self):
        # A script draws before it begins the first.
        first = next(iter(self.loaders.values()))
        return first.draws_again() if hasattr(first, "draws_again") else None

    def state_dict(self, trial=False):
        """Of each by its name, and `epoch`, that of the first."""
        states = {name: state_of(one, trial) for name, one in self.loaders.items()}
        first = next(iter(states.values()))
        return {"epoch": first.get("epoch"), "loaders": states}

    def load_state_dict(self, state):
        before = self.state_dict()["loaders"]
        for name, one in self.loaders.items():
            try:
                one.load_state_dict(state["loaders"][name])
            except (ValueError, KeyError) as error:
                for loaded in itertools.takewhile(lambda other, name=name: other != name, self.loaders):
                    self.loaders[loaded].load_state_dict(before[loaded])
                raise ValueError(f"{name}: {error}") from error


def load(loader, state):
    """Takes the position up. CheckpointError where it is of other loaders or other data."""
    try:
        _check(loader, state)
        loader.load_state_dict(state)
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{error}; without loader= the order of samples begins anew") from error


def begin_with_epoch(loader, state):
    """The epochs that were under way begin anew, as there were other ranks."""
    try:
        _check(loader, state)
    except ValueError as error:
        raise CheckpointError(f"{error}; without loader= the order of samples begins anew") from error
    several = isinstance(loader, Loaders)
    for name, one in loader.loaders.items() if several else [(None, loader)]:
        if hasattr(one, "begin_with_epoch"):
            one.begin_with_epoch((state["loaders"][name] if several else state)["epoch"])


def begin_with_its_epoch(loader, state):
    """The same where the position was refused, each with the epoch of its name, or the first one's."""
    for name, one in loader.loaders.items() if isinstance(loader, Loaders) else [(None, loader)]:
        several = state.get("loaders")
        its = several.get(name) if isinstance(several, dict) else state
        epoch = (its if isinstance(its, dict) else state).get("epoch")
        if type(epoch) is int and hasattr(one, "begin_with_epoch"):
            one.begin_with_epoch(epoch)


def _check(loader, state):
    saved = state.get("loaders")
    here = loader.loaders if isinstance(loader, Loaders) else None
    if (saved is None) != (here is None) or saved is not None and set(saved) != set(here):
        raise ValueError(f"the checkpoint has the position of {_some(saved)} and here {_some(here)}")


def _some(loaders):
    return "one loader" if loaders is None else f"the loaders {', '.join(loaders)}"
