"""What a checkpoint holds of a job: its objects with a state, every random generator, the loader's position."""

from __future__ import annotations

import itertools
import platform
from typing import Any, Protocol

import torch

from stallscope import _random

from . import loaders
from .dtensors import is_dtensor, refuse_unknown
from .errors import CheckpointError
from .loading import own_prefixes
from .tree import Writer, refuse_distributed

FORMAT = 1
# Steps up to here can be gone on from.
_MOST_STEPS = 1 << 62


class Stateful(Protocol):
    """What can be saved and restored."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


def is_of_a_job(encoded):
    """Whether the JSON `encoded` has the form that Job.take_apart() gives it, or is of another format. What its trees hold is looked at as they
    are decoded."""
    if type(encoded) is not dict or encoded.get("format") != FORMAT:
        return type(encoded) is dict
    objects, shapes, names, shards = (encoded.get(key, {}) for key in ("objects", "shapes", "names", "shards"))
    if not all(type(one) is dict for one in (objects, shapes, names, shards)):
        return False
    lists = all(one is None or type(one) is list for one in [*shapes.values(), *names.values()])
    are_names = lists and all(name is None or type(name) is str for one in names.values() for name in one or ())
    step = encoded.get("step")
    return are_names and type(step) is int and 0 <= step < _MOST_STEPS and "own" in encoded


class Job:
    """The parts of a training job. `objects`: name -> whatever has state_dict() and load_state_dict()."""

    def __init__(self, objects, loader, user):
        self.objects = {name: _unwrapped(one) for name, one in objects.items()}
        self.loader = loader
        self.user = user
        # Name -> type: what was taken apart last and comes back for those alone who trust the checkpoint.
        self.untrusted = {}
        # Whether it has tensors of which each rank holds a part: then all of them take their objects apart. None until that is known.
        self.is_distributed = None
        for name, one in self.objects.items():
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(one, method, None)):
                    raise TypeError(f"{name}: a {type(one).__name__} has no {method}(), so its state cannot be saved")

    def take_apart(self, step, why, whole, trial=False):
        """(JSON, tensors by name) of this rank's part: what is its own, its parts of DTensors, and, where `whole`, all else that the
        objects have. The tensors are the live ones. Of a `trial` nothing is saved: it lacks what to ask for changes the job."""
        writer = Writer()
        own = {"random": _random.capture()}
        if self.loader is not None:
            own["loader"] = loaders.state_of(self.loader, trial)
        encoded = {
            "format": FORMAT,
            "step": step,
            "why": why,
            "versions": {"torch": str(torch.__version__), "python": platform.python_version()},
            "own": writer.encode(own, ".own"),
        }
        tensors = writer.tensors
        if whole or self.is_distributed:
            own_tensors = dict(tensors)
            objects = self._encoded_objects(writer, trial)
            if whole:
                encoded.update(objects)
            else:
                # The same on all ranks, which the first one saves.
                tensors = own_tensors | {name: one for name, one in tensors.items() if name in writer.shards}
            if writer.shards:
                encoded.update(shards=writer.shards, meshes=writer.meshes)
        self.untrusted = writer.untrusted
        return encoded, tensors

    def _encoded_objects(self, writer, trial):
        # Tensors' names begin with the object's, and none can be called so: it is a parameter of Checkpointer.
        encoded = {"user": writer.encode(self.user, "state")}
        asked = {name: one for name, one in self.objects.items() if not trial or loaders.may_be_tried(one)}
        encoded["objects"] = {name: writer.encode(one.state_dict(), name) for name, one in asked.items()}
        optimizers = {name: one for name, one in self.objects.items() if isinstance(one, torch.optim.Optimizer)}
        if self.is_distributed is None:
            # Before the first step an optimiser's state has none of them.
            parameters = [
                self._is_distributed(parameter, f"{name}: parameter {number}")
                for name, one in optimizers.items()
                for number, parameter in enumerate(parameters_of(one))
            ]
            self.is_distributed = bool(writer.shards) or any(parameters)
        elif writer.shards and not self.is_distributed:
            raise CheckpointError(
                f"{next(iter(writer.shards))} has become a DTensor since the Checkpointer was made: make it after fully_shard() or distribute_tensor()"
            )
        encoded["shapes"] = {name: parameter_shapes(one) for name, one in optimizers.items()}
        names = self.parameter_names()
        encoded["names"] = {name: [names.get(id(parameter)) for parameter in parameters_of(one)] for name, one in optimizers.items()}
        return encoded

    def parameter_names(self):
        """id() of a parameter -> its name in the checkpoint, of those that the modules here have."""
        names = {}
        for name, one in self.objects.items():
            for inner, parameter in one.named_parameters() if isinstance(one, torch.nn.Module) else ():
                names.setdefault(id(parameter), f"{name}/{inner}")
        return names

    def forms(self):
        """Name of an object -> what has to be the same on all ranks, of which one saves it: names and shapes of parameters."""
        forms = {}
        for name, one in self.objects.items():
            if isinstance(one, torch.nn.Module):
                forms[name] = [(inner, _shape(parameter)) for inner, parameter in one.named_parameters()]
            else:
                forms[name] = parameter_shapes(one) if isinstance(one, torch.optim.Optimizer) else None
        return forms

    @staticmethod
    def _is_distributed(parameter, name):
        if is_dtensor(parameter):
            refuse_unknown(parameter, name)
            return True
        refuse_distributed(parameter, name)
        return False

    def unsaved(self, tensors):
        """Name of an optimiser -> the parameters that it trains and none of `tensors`, which take_apart() gave, is."""
        saved = {tensor.data_ptr() for tensor in tensors.values()}
        found = {}
        for name, one in self.objects.items():
            if isinstance(one, torch.optim.Optimizer):
                lost = [parameter for parameter in parameters_of(one) if _has_memory(parameter) and parameter.data_ptr() not in saved]
                if lost:
                    found[name] = lost
        return found

    def still(self):
        """Names of the tensors that training does not change: frozen parameters."""
        return {
            f"{name}/{parameter}"
            for name, one in self.objects.items()
            if isinstance(one, torch.nn.Module)
            for parameter, value in one.named_parameters()
            if not value.requires_grad
        }

    def differs_from(self, latest, encoded, tensors):
        """Why the checkpoint `latest` (reading.Latest) is of a job with other modules than these, which take_apart() gave as `encoded` and
        `tensors`; None where it is not. What other objects hold changes as a job goes on."""
        if not latest.objects or not self.objects:
            return None
        common = [name for name in self.objects if name in latest.objects]
        if not common:
            return f"{latest.name} has {some(latest.objects)} and here {_is_or_are(list(self.objects))}"
        shapes = {key: list(tensor.shape) for key, tensor in tensors.items()}
        shapes.update((key, shard["shape"]) for key, shard in encoded.get("shards", {}).items())
        for name in common:
            if not isinstance(self.objects[name], torch.nn.Module):
                continue
            if any(map(torch.nn.parameter.is_lazy, self.objects[name].parameters())):
                # What shapes it will have only its first batch says.
                continue
            own = tuple(f"{name}/{prefix}" for prefix in own_prefixes(self.objects[name]))
            here, there = (
                {key: shape for key, shape in all_shapes.items() if key.startswith(f"{name}/") and not key.startswith(own)}
                for all_shapes in (shapes, latest.shapes)
            )
            missing, unexpected = [key for key in here if key not in there], [key for key in there if key not in here]
            if missing or unexpected:
                return f"{latest.name} lacks {some(missing)} and has {some(unexpected)} besides"
            for key, shape in here.items():
                if shape != there[key]:
                    return f"{key} is {there[key]} in {latest.name} and {shape} here"
        return None


def _unwrapped(one):
    """The module within DataParallel, DistributedDataParallel and torch.compile: its names are the same without them. A wrapper of
    the script's may have more than the module within."""
    parallel = torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel
    while isinstance(one, torch.nn.Module):
        within = one.module if isinstance(one, parallel) else getattr(one, "_orig_mod", None)
        if not isinstance(within, torch.nn.Module) or _count(within) != _count(one):
            break
        one = within
    return one


def _count(module):
    """Of its tensors."""
    return sum(1 for _ in itertools.chain(module.parameters(), module.buffers()))


def parameters_of(optimizer):
    """Those that it steps, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _has_memory(parameter):
    """Of its own and in this process."""
    simple = type(parameter) in (torch.Tensor, torch.nn.Parameter)
    return simple and parameter.layout is torch.strided and not parameter.is_meta and parameter.numel() > 0


def parameter_shapes(optimizer):
    return [_shape(parameter) for parameter in parameters_of(optimizer)]


def _shape(parameter):
    """None where its first batch is to say."""
    return None if torch.nn.parameter.is_lazy(parameter) else list(parameter.shape)


def _is_or_are(names):
    return f"{'is' if len(names) == 1 else 'are'} {some(names)}"


def some(names):
    if not names:
        return "nothing"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
