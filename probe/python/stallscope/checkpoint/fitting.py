"""Whether a state that was saved is one of the object that is here: by names, shapes and types, without a tensor's elements."""

import torch

from .dtensors import is_dtensor
from .errors import CheckpointError
from .loading import own_prefixes
from .state import parameter_shapes, some


def fitting(name, module, state):
    """(`state` with what does not fit replaced by what `module` has, sentences that say what that is)."""
    here = module.state_dict()

    def fits(key):
        if key not in state or isinstance(here[key], torch.Tensor) != isinstance(state[key], torch.Tensor):
            return False
        # A lazy one takes any shape.
        if not isinstance(here[key], torch.Tensor) or torch.nn.parameter.is_lazy(here[key]):
            return True
        return here[key].shape == state[key].shape and torch.can_cast(state[key].dtype, here[key].dtype)

    kept = [key for key in here if not fits(key)]
    unused = [key for key in state if key not in here]
    sentences = [f"{name}: {some(kept)} {'is' if len(kept) == 1 else 'are'} as before"] if kept else []
    if unused:
        sentences.append(f"{name}: {some(unused)} of the checkpoint {'is' if len(unused) == 1 else 'are'} not used")
    fit = {key: value if key in kept else state[key] for key, value in here.items()}
    return fit, sentences


def demand_form(name, one, state):
    """CheckpointError where `state` is not as those of modules, or of optimisers, are."""
    is_dict = isinstance(state, dict)
    groups = state.get("param_groups") if is_dict else None
    are_groups = isinstance(groups, list) and all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups)
    if not (are_groups if isinstance(one, torch.optim.Optimizer) else is_dict or not isinstance(one, torch.nn.Module)):
        raise CheckpointError(f"{name}: what the checkpoint has of it is no state of a {type(one).__name__}: another program made it")


def in_its_order(name, optimizer, state, shapes, then, here):
    """(`state`, `shapes`) with the parameters of each group in the order of `optimizer`, by their names `then` and `here`; as they are
    where not all have names, or other ones. CheckpointError where one is in another group."""
    if then is None or then == here or None in then + here or sorted(then) != sorted(here):
        return state, shapes
    groups, order, first = [], [], 0
    for group, own in zip(state["param_groups"], optimizer.param_groups):
        places = range(first, first + len(group["params"]))
        was = {then[place]: place for place in places}
        names = here[first : first + len(own["params"])]
        moved = [one for one in names if one not in was]
        if moved:
            raise CheckpointError(
                f"{name}: {some(moved)} {'is' if len(moved) == 1 else 'are'} in another of its groups than in the checkpoint: give it the "
                "same parameters in the same groups"
            )
        order += [was[one] for one in names]
        # Whatever it has for each parameter: their numbers, and names where torch was given them.
        each = {key: [group[key][was[one] - first] for one in names] for key in ("params", "param_names") if key in group}
        groups.append({**group, **each})
        first += len(names)
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        raise CheckpointError(
            f"{name}: its parameters are in another order than in the checkpoint, and its load_state_dict() is its own: give it them in the same order"
        )
    return {**state, "param_groups": groups}, shapes and [shapes[place] for place in order]


def check(name, one, state, shapes):
    """CheckpointError where `state` is not one of such an object. `shapes`: of an optimiser's parameters when it was saved;
    None where they were not."""
    here = None
    if isinstance(one, torch.nn.Module):
        # What such code does not take it refuses by itself.
        own = own_prefixes(one)
        here = {key: value for key, value in one.state_dict().items() if not key.startswith(own)}
        missing = [key for key in here if key not in state]
        unexpected = [key for key in state if key not in here and not key.startswith(own)]
        if missing or unexpected:
            raise CheckpointError(
                f"{name}: the checkpoint is of another model: it lacks {some(missing)} and has {some(unexpected)} besides"
            )
        for key, value in here.items():
            if not isinstance(value, torch.Tensor) or torch.nn.parameter.is_lazy(value):
                continue
            if not isinstance(state[key], torch.Tensor) or value.shape != state[key].shape:
                then = list(state[key].shape) if isinstance(state[key], torch.Tensor) else f"a {type(state[key]).__name__}"
                raise CheckpointError(
                    f"{name}: {key} is {then} in the checkpoint and {list(value.shape)} here: restore into a model of the "
                    "same shape"
                )
            if not torch.can_cast(state[key].dtype, value.dtype):
                raise CheckpointError(
                    f"{name}: {key} is of {state[key].dtype} in the checkpoint and of {value.dtype} here, which cannot hold it"
                )
            if shares_memory(value):
                raise CheckpointError(
                    f"{name}: {key} cannot be written to here, as its elements share memory (expand()): clone() it where the model is made"
                )
    elif isinstance(one, torch.optim.Optimizer):
        sizes = [len(group["params"]) for group in one.param_groups]
        saved = [len(group["params"]) for group in state["param_groups"]]
        if sizes != saved:
            raise CheckpointError(f"{name}: its groups have {sizes} parameters here and {saved} in the checkpoint")
        for number, (then, here) in enumerate(zip(shapes or (), parameter_shapes(one))):
            if None not in (then, here) and then != here:
                raise CheckpointError(
                    f"{name}: parameter {number} is {then} in the checkpoint and {here} here: restore into a model of the "
                    "same shape"
                )


def shares_memory(tensor):
    """Whether torch refuses to copy into it, as elements of it are one."""
    if is_dtensor(tensor) or tensor.layout is not torch.strided:
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride()))
