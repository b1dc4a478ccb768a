"""What a checkpoint holds of a job: its objects with a state, every random generator, the loader's position."""

import contextlib
import copy
import functools
import platform
import warnings

import torch

from stallscope import _random

from . import loaders
from .errors import CheckpointError
from .tree import Reader, Writer, refuse_distributed

_FORMAT = 1


class Job:
    """The parts of a training job. `objects`: name -> whatever has state_dict() and load_state_dict()."""

    def __init__(self, objects, loader, user):
        self.objects = {name: _unwrapped(one) for name, one in objects.items()}
        self.loader = loader
        self.user = user
        # Name -> type: what was taken apart last and comes back for those alone who trust the checkpoint.
        self.untrusted = {}
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
            "own": writer.encode(own, ".own"),
        }
        if whole:
            # Tensors' names begin with the object's, and none can be called so: it is a parameter of Checkpointer.
            encoded["user"] = writer.encode(self.user, "state")
            encoded["objects"] = {name: writer.encode(one.state_dict(), name) for name, one in self.objects.items()}
            optimizers = {name: one for name, one in self.objects.items() if isinstance(one, torch.optim.Optimizer)}
            for name, one in optimizers.items():
                # Before the first step its state has none of them.
                for number, parameter in enumerate(_parameters(one)):
                    refuse_distributed(parameter, f"{name}: parameter {number}")
            encoded["shapes"] = {name: _shapes(one) for name, one in optimizers.items()}
        self.untrusted = writer.untrusted
        return encoded, writer.tensors

    def unsaved(self, tensors):
        """Name of an optimiser -> the parameters that it trains and none of `tensors`, which take_apart() gave, is."""
        saved = {tensor.data_ptr() for tensor in tensors.values()}
        found = {}
        for name, one in self.objects.items():
            if isinstance(one, torch.optim.Optimizer):
                lost = [parameter for parameter in _parameters(one) if _has_memory(parameter) and parameter.data_ptr() not in saved]
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

    def differs_from(self, latest, tensors):
        """Why the checkpoint `latest` (reading.Latest) is of a job with other modules than these, whose `tensors` take_apart() gave; None
        where it is not. What other objects hold changes as a job goes on."""
        if not latest.objects or not self.objects:
            return None
        common = [name for name in self.objects if name in latest.objects]
        if not common:
            return f"{latest.name} has {_some(latest.objects)} and here {_is_or_are(list(self.objects))}"
        for name in common:
            if not isinstance(self.objects[name], torch.nn.Module):
                continue
            if any(map(torch.nn.parameter.is_lazy, self.objects[name].parameters())):
                # What shapes it will have only its first batch says.
                continue
            here = {key: list(tensor.shape) for key, tensor in tensors.items() if key.startswith(f"{name}/")}
            there = {key: shape for key, shape in latest.shapes.items() if key.startswith(f"{name}/")}
            missing, unexpected = [key for key in here if key not in there], [key for key in there if key not in here]
            if missing or unexpected:
                return f"{latest.name} lacks {_some(missing)} and has {_some(unexpected)} besides"
            for key, shape in here.items():
                if shape != there[key]:
                    return f"{key} is {there[key]} in {latest.name} and {shape} here"
        return None

    def put_back(self, part, own, trust, strict=True):
        """Sets everything to what was saved, and gives (epoch, what did not fit). `own`: this rank's part, None where
        there is none, as there were fewer or more ranks. CheckpointError where it does not fit; then everything is as it
        was. Without `strict`, what fits is set, and the rest stays as it is: sentences say what."""
        encoded = part.encoded
        if encoded.get("format") != _FORMAT:
            raise CheckpointError(
                f"the checkpoint has format {encoded.get('format')!r} and this stallscope reads {_FORMAT}: "
                "use the version that wrote it"
            )
        reader = Reader(part.tensors(), trust)
        saved, shapes = encoded.get("objects", {}), encoded.get("shapes", {})
        states, misfits = {}, []
        for name, one in self.objects.items():
            try:
                if name not in saved:
                    has = ", ".join(saved) or "nothing"
                    raise CheckpointError(
                        f"the checkpoint has no {name!r} but {has}: restore with what it was saved with"
                    )
                state = reader.decode(saved[name])
                if not strict and isinstance(one, torch.nn.Module):
                    state, unfit = _fitting(name, one, state)
                    misfits += unfit
                _check(name, one, state, shapes.get(name))
            except CheckpointError as error:
                if strict:
                    raise
                misfits.append(str(error))
                continue
            states[name] = state
        unused = [name for name in saved if name not in self.objects]
        if unused:
            _warn(f"The checkpoint also has {', '.join(unused)}, which nobody here takes.")
        user = reader.decode(encoded.get("user", {"dict": {}}))
        if own is None or own.rank == part.rank:
            mine = reader.decode(encoded["own"])
        else:
            mine = Reader(own.tensors(), trust).decode(own.encoded["own"])
        undo = [functools.partial(_random.restore, _random.capture())]
        try:
            self._set(states, mine, own is None, undo, None if strict else misfits)
        except BaseException:
            for one in reversed(undo):
                # What refuses its own state of a moment ago can't be helped.
                with contextlib.suppress(Exception):
                    one()
            raise
        self.user.clear()
        self.user.update(user)
        if own is None:
            _warn(
                "The checkpoint is of another number of ranks: random generators and the order of samples begin anew, "
                "with the epoch that was under way."
            )
        else:
            _random.restore(mine["random"])
        return (mine.get("loader") or {}).get("epoch"), misfits

    def _set(self, states, mine, begin_anew, undo, misfits):
        """What may refuse comes first, with what takes it back in `undo`. Modules come last: a state whose names, shapes
        and types fit is copied into them, and to keep what they had would take as much memory again. What is refused is
        added to `misfits`, where that is a list."""
        objects = {name: one for name, one in self.objects.items() if name in states}
        last = {name: one for name, one in objects.items() if isinstance(one, torch.nn.Module)}
        for name, one in objects.items():
            if name not in last:
                before = copy.deepcopy(one.state_dict())
                undo.append(functools.partial(one.load_state_dict, before))
                with _refused(misfits, undo[-1]):
                    _load(name, one, states[name])
        if not begin_anew:
            # Whether they can be set; they are once more when nothing draws from them any more.
            try:
                _random.restore(mine["random"])
            except Exception as error:
                raise CheckpointError(f"the checkpoint's random generators cannot be set here: {error}") from error
        if self.loader is not None and "loader" in mine:
            with _refused(misfits):
                self._put_back_position(mine, begin_anew)
        for name, one in last.items():
            _load(name, one, states[name])

    def _put_back_position(self, mine, begin_anew):
        if begin_anew:
            loaders.begin_with_epoch(self.loader, mine["loader"])
            return
        loaders.load(self.loader, mine["loader"])
        go_on_with = getattr(self.loader, "go_on_with", None)
        if go_on_with is not None:
            go_on_with(mine["random"])


@contextlib.contextmanager
def _refused(misfits, undo=None):
    """Adds a CheckpointError to `misfits`, where that is a list, and has `undo` take back what was set by then."""
    try:
        yield
    except CheckpointError as error:
        if misfits is None:
            raise
        misfits.append(str(error))
        if undo is not None:
            undo()


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


def _parameters(optimizer):
    """Those that it steps, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _has_memory(parameter):
    """Of its own and in this process."""
    simple = type(parameter) in (torch.Tensor, torch.nn.Parameter)
    return simple and parameter.layout is torch.strided and not parameter.is_meta and parameter.numel() > 0


def _shapes(optimizer):
    return [list(parameter.shape) for parameter in _parameters(optimizer)]


def _fitting(name, module, state):
    """(`state` with what does not fit replaced by what `module` has, sentences that say what that is)."""
    here = module.state_dict()

    def fits(key):
        if key not in state or isinstance(here[key], torch.Tensor) != isinstance(state[key], torch.Tensor):
            return False
        if not isinstance(here[key], torch.Tensor):
            return True
        return here[key].shape == state[key].shape and torch.can_cast(state[key].dtype, here[key].dtype)

    kept = [key for key in here if not fits(key)]
    unused = [key for key in state if key not in here]
    sentences = [f"{name}: {_some(kept)} {'is' if len(kept) == 1 else 'are'} as before"] if kept else []
    if unused:
        sentences.append(f"{name}: {_some(unused)} of the checkpoint {'is' if len(unused) == 1 else 'are'} not used")
    fit = {key: value if key in kept else state[key] for key, value in here.items()}
    return fit, sentences


def _check(name, one, state, shapes):
    """CheckpointError where `state` is not one of such an object. `shapes`: of an optimiser's parameters when it was saved;
    None where they were not."""
    here = None
    if isinstance(one, torch.nn.Module):
        here = one.state_dict()
        missing, unexpected = [key for key in here if key not in state], [key for key in state if key not in here]
        if missing or unexpected:
            raise CheckpointError(
                f"{name}: the checkpoint is of another model: it lacks {_some(missing)} and has {_some(unexpected)} besides"
            )
        for key, value in here.items():
            # A lazy one takes any shape.
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
    elif isinstance(one, torch.optim.Optimizer):
        sizes = [len(group["params"]) for group in one.param_groups]
        saved = [len(group["params"]) for group in state["param_groups"]]
        if sizes != saved:
            raise CheckpointError(f"{name}: its groups have {sizes} parameters here and {saved} in the checkpoint")
        for number, (then, here) in enumerate(zip(shapes or (), _shapes(one))):
            if then != here:
                raise CheckpointError(
                    f"{name}: parameter {number} is {then} in the checkpoint and {here} here: restore into a model of the "
                    "same shape"
                )


def _load(name, one, state):
    try:
        one.load_state_dict(state)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # torch begins with a heading.
        why = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        raise CheckpointError(f"{name}: {type(one).__name__} does not take the state from the checkpoint: {why}") from error


def _is_or_are(names):
    return f"{'is' if len(names) == 1 else 'are'} {_some(names)}"


def _some(names):
    if not names:
        return "nothing"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
