"""What a checkpoint holds of a job: its objects with a state, every random generator, the loader's position."""

import platform
import warnings

import torch

from stallscope import _random

from .errors import CheckpointError
from .tree import Reader, Writer

_FORMAT = 1


class Job:
    """The parts of a training job. `objects`: name -> whatever has state_dict() and load_state_dict()."""

    def __init__(self, objects, loader, user):
        self.objects = {name: _unwrapped(one) for name, one in objects.items()}
        self.loader = loader
        self.user = user
        for name, one in self.objects.items():
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(one, method, None)):
                    raise TypeError(f"{name}: a {type(one).__name__} has no {method}(), so its state cannot be saved")

    def take_apart(self, step, why, whole):
        """(JSON, tensors by name) of this rank's part: what is its own, and, where `whole`, the objects. The tensors are
        the live ones."""
        writer = Writer()
        own = {"random": _random.capture()}
        if self.loader is not None:
            own["loader"] = self.loader.state_dict()
        encoded = {
            "format": _FORMAT,
            "step": step,
            "why": why,
            "versions": {"torch": str(torch.__version__), "python": platform.python_version()},
            "own": writer.encode(own, "own"),
        }
        if whole:
            encoded["user"] = writer.encode(self.user, "user")
            encoded["objects"] = {name: writer.encode(one.state_dict(), name) for name, one in self.objects.items()}
        return encoded, writer.tensors

    def still(self):
        """Names of the tensors that training does not change: frozen parameters."""
        return {
            f"{name}/{parameter}"
            for name, one in self.objects.items()
            if isinstance(one, torch.nn.Module)
            for parameter, value in one.named_parameters()
            if not value.requires_grad
        }

    def put_back(self, part, own, trust):
        """Sets everything to what was saved, and gives the epoch. `own`: this rank's part, None where there is none, as
        there were fewer or more ranks. CheckpointError where it does not fit, if possible before anything is set."""
        encoded = part.encoded
        if encoded.get("format") != _FORMAT:
            raise CheckpointError(
                f"the checkpoint has format {encoded.get('format')!r} and this stallscope reads {_FORMAT}: "
                "use the version that wrote it"
            )
        reader = Reader(part.tensors(), trust)
        saved = encoded.get("objects", {})
        states = {}
        for name, one in self.objects.items():
            if name not in saved:
                raise CheckpointError(
                    f"the checkpoint has no {name!r} but {', '.join(saved) or 'nothing'}: restore with what it was saved with"
                )
            states[name] = reader.decode(saved[name])
            _check(name, one, states[name])
        unused = [name for name in saved if name not in self.objects]
        if unused:
            _warn(f"The checkpoint also has {', '.join(unused)}, which nobody here takes.")
        user = reader.decode(encoded.get("user", {"dict": {}}))
        if own is None or own.rank == part.rank:
            mine = reader.decode(encoded["own"])
        else:
            mine = Reader(own.tensors(), trust).decode(own.encoded["own"])
        if self.loader is not None and "loader" in mine:
            self._put_back_position(mine, begin_anew=own is None)
        for name, one in self.objects.items():
            _load(name, one, states[name])
        self.user.clear()
        self.user.update(user)
        epoch = (mine.get("loader") or {}).get("epoch")
        if own is None:
            _warn(
                "The checkpoint is of another number of ranks: random generators and the order of samples begin anew, "
                "with the epoch that was under way."
            )
        else:
            _random.restore(mine["random"])
        return epoch

    def _put_back_position(self, mine, begin_anew):
        if begin_anew:
            if hasattr(self.loader, "begin_with_epoch"):
                self.loader.begin_with_epoch(mine["loader"]["epoch"])
            return
        try:
            self.loader.load_state_dict(mine["loader"])
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{error}; without loader= the order of samples begins anew") from error
        go_on_with = getattr(self.loader, "go_on_with", None)
        if go_on_with is not None:
            go_on_with(mine["random"])


def _warn(sentence):
    warnings.warn(f"stallscope: {sentence}", RuntimeWarning, stacklevel=5)


def _unwrapped(one):
    """The module within DataParallel, DistributedDataParallel and torch.compile: its names are the same without them."""
    parallel = [torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel]
    while True:
        if isinstance(one, tuple(parallel)):
            one = one.module
        elif isinstance(one, torch.nn.Module) and isinstance(getattr(one, "_orig_mod", None), torch.nn.Module):
            one = one._orig_mod
        else:
            return one


def _check(name, one, state):
    """CheckpointError where `state` is not one of such an object."""
    here = None
    if isinstance(one, torch.nn.Module):
        here = one.state_dict()
        missing, unexpected = [key for key in here if key not in state], [key for key in state if key not in here]
        if missing or unexpected:
            raise CheckpointError(
                f"{name}: the checkpoint is of another model: it lacks {_some(missing)} and has {_some(unexpected)} besides"
            )
        for key, value in here.items():
            if isinstance(value, torch.Tensor) and value.shape != state[key].shape:
                raise CheckpointError(
                    f"{name}: {key} is {list(state[key].shape)} in the checkpoint and {list(value.shape)} here: "
                    "restore into a model of the same shape"
                )
    elif isinstance(one, torch.optim.Optimizer):
        sizes = [len(group["params"]) for group in one.param_groups]
        saved = [len(group["params"]) for group in state["param_groups"]]
        if sizes != saved:
            raise CheckpointError(f"{name}: its groups have {sizes} parameters here and {saved} in the checkpoint")
        parameters = [parameter for group in one.param_groups for parameter in group["params"]]
        order = [number for group in state["param_groups"] for number in group["params"]]
        for number, parameter in zip(order, parameters):
            for key, value in state["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor) and value.dim() == parameter.dim() > 0 and value.shape != parameter.shape:
                    raise CheckpointError(
                        f"{name}: {key} of parameter {number} is {list(value.shape)} in the checkpoint and the parameter "
                        f"{list(parameter.shape)} here: restore into a model of the same shape"
                    )


def _load(name, one, state):
    try:
        one.load_state_dict(state)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # torch begins with a heading.
        why = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        raise CheckpointError(f"{name}: {type(one).__name__} does not take the state from the checkpoint: {why}") from error


def _some(names):
    if not names:
        return "nothing"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
