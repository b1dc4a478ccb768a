"""A checkpoint put into a job. Whatever may refuse comes before anything is set for good, on all ranks; then tensors are read
straight into those of the modules and optimisers that are here, so that no state is in memory a second time.
"""

import contextlib
import copy
import functools

import torch

from stallscope import _notices, _random
from stallscope._hooks.knobs import raised_by_signal

from . import loaders
from .devices import on_devices_of
from .dtensors import Likes, is_dtensor
from .errors import CheckpointError, printable
from .fitting import check, demand_form, fitting, in_its_order, shares_memory
from .loading import has_own_extra_state, own_prefixes
from .ownership import memory_of, owned
from .state import FORMAT, parameters_of
from .tree import Reader, Writer
from .unread import Unread, fill


class Restoring:
    """One restore() of `job` (state.Job). `part`: what has the objects; `own`: this rank's part, None where there is none, as there
    were fewer or more ranks. Without `strict`, what fits is set, and the rest stays as it is: `misfits` says what."""

    def __init__(self, job, part, own, trust, strict):
        self.job = job
        self.part = part
        self.own = own
        self.trust = trust
        self.strict = strict
        self.misfits = []
        self._undo = [functools.partial(_random.restore, _random.capture())]
        # States of modules by name, to be loaded, and what is in optimisers already, to be filled: (Unread, its place).
        self._modules = {}
        self._places = []
        # (optimiser, the states that it had): until all places are filled.
        self._had = []

    def prepare(self):
        """Checks everything, and sets what may refuse by itself and can be taken back. CheckpointError where it does not fit."""
        encoded = self.part.encoded
        if encoded.get("format") != FORMAT:
            raise CheckpointError(
                f"the checkpoint has format {encoded.get('format')!r} and this stallscope reads {FORMAT}: "
                "use the version that wrote it"
            )
        states = self._states(encoded.get("objects", {}), encoded.get("shapes", {}), encoded.get("names", {}))
        self._user = Reader(self.part.tensors(), self.trust, likes=self._likes("state", self.job.user)).decode(encoded.get("user", {"dict": {}}))
        self._user = on_devices_of(self.job.user, self._user)
        mine = self.own or self.part
        self._mine = Reader(mine.tensors(), self.trust).decode(mine.encoded["own"])
        if not (isinstance(self._user, dict) and isinstance(self._mine, dict) and isinstance(self._mine.get("loader", {}), dict)):
            raise CheckpointError(f"{self.part.reading.name} has a state that no stallscope.Checkpointer saves: another program made it")
        cannot_refuse = [name for name in states if not _may_refuse(self.job.objects[name])]
        self._modules = {name: states.pop(name) for name in cannot_refuse}
        for name in list(states):
            self._set(name, self.job.objects[name], states.pop(name))
        if self.own is not None:
            # Whether they can be set; they are once more when nothing draws from them any more.
            try:
                _random.restore(self._mine["random"])
            except Exception as error:
                if raised_by_signal(error):
                    raise
                raise CheckpointError(f"the checkpoint's random generators cannot be set here: {error}") from error
        if self.job.loader is not None and "loader" in self._mine:
            with self._refused(lambda: loaders.begin_with_its_epoch(self.job.loader, self._mine["loader"])):
                self._put_back_position()

    def take_back(self):
        """Everything is as it was before prepare()."""
        by_signal = None
        for one in reversed(self._undo):
            try:
                one()
            except Exception as error:
                # What refuses its own state of a moment ago can't be helped; what a signal's handler raises arrives when all is done.
                if raised_by_signal(error):
                    by_signal = error
        if by_signal is not None:
            raise by_signal

    def finish(self):
        """Reads tensors into their places. CheckpointError where the disk fails now: then part of them is set. The epoch."""
        try:
            for name in list(self._modules):
                load(name, self.job.objects[name], self._modules.pop(name))
            fill(self._places)
        except BaseException as error:
            for optimizer, had in self._had:
                # Not the empty tensors that others were to be read to.
                optimizer.state.clear()
                optimizer.state.update(had)
            failed = self.part.reading.failed
            if failed is None or not isinstance(error, Exception):
                raise
            raise CheckpointError(
                f"{failed}, which was whole a moment ago: a part of the state here is the checkpoint's now and the rest is as before, so call "
                "restore() again, which looks for the newest that verifies, or start this job anew"
            ) from error
        self.job.user.clear()
        self.job.user.update(self._user)
        if self.own is None:
            _warn(
                "The checkpoint is of another number of ranks: random generators and the order of samples begin anew, "
                "with the epoch that was under way.",
                6,
            )
        else:
            draws_again = getattr(self.job.loader, "draws_again", None)
            _random.restore((draws_again and draws_again()) or self._mine["random"])
        return (self._mine.get("loader") or {}).get("epoch")

    def _states(self, saved, shapes, names):
        """State by name of those objects that are in the checkpoint and fit. `shapes`, `names`: of optimisers' parameters."""
        states, known = {}, self.job.parameter_names()
        for name, one in self.job.objects.items():
            try:
                if name not in saved:
                    has = ", ".join(saved) or "nothing"
                    raise CheckpointError(
                        f"the checkpoint has no {name!r} but {has}: restore with what it was saved with"
                    )
                streams = _loads_as_torch_does(one)
                likes = None if streams else self._likes(name, one.state_dict)
                state = Reader(self.part.tensors(), self.trust, streams, likes).decode(saved[name])
                demand_form(name, one, state)
                if not self.strict and isinstance(one, torch.nn.Module):
                    state, unfit = fitting(name, one, state)
                    self.misfits += unfit
                its_shapes = shapes.get(name)
                if isinstance(one, torch.optim.Optimizer):
                    here = [known.get(id(parameter)) for parameter in parameters_of(one)]
                    state, its_shapes = in_its_order(name, one, state, its_shapes, names.get(name), here)
                check(name, one, state, its_shapes)
            except CheckpointError as error:
                if self.strict:
                    raise
                self.misfits.append(str(error))
                continue
            states[name] = state
        unused = [name for name in saved if name not in self.job.objects]
        if unused:
            _warn(f"The checkpoint also has {', '.join(unused)}, which nobody here takes.", 7)
        return states

    def _likes(self, name, there):
        """`there`: the state that is in the place of the one called `name`, or what gives it; None where no rank has DTensors."""
        if not self.job.is_distributed:
            return None
        writer = Writer()
        writer.encode(there() if callable(there) else there, name)
        return Likes(writer.dtensors, writer.tensors.keys(), list(self._dtensors()))

    def _dtensors(self):
        """Of the job's modules and optimisers, as they are now."""
        for one in self.job.objects.values():
            found = one.parameters() if isinstance(one, torch.nn.Module) else parameters_of(one) if isinstance(one, torch.optim.Optimizer) else ()
            yield from filter(is_dtensor, found)

    def _set(self, name, one, state):
        """The state of what may refuse it. An optimiser takes tensors that are unread, in whose places those come that it alone had or
        empty ones, untouched until finish(); whatever else may write into what it has."""
        streams = isinstance(one, torch.optim.Optimizer) and _loads_as_torch_does(one)
        # Before anything here refers to them.
        its_own = owned(one, self.job.objects.values()) if streams else ()
        before = one.state_dict() if streams else _copied(one.state_dict())
        had = dict(one.state) if streams else None
        self._undo.append(functools.partial(one.load_state_dict, before))
        with self._refused(self._undo[-1]):
            load(name, one, _beside_parameters_on_devices_of(before, state) if streams else on_devices_of(before, state))
            if streams:
                self._had.append((one, had))
                self._places += _given_places(name, one, had, its_own)

    def _put_back_position(self):
        if self.own is None:
            loaders.begin_with_epoch(self.job.loader, self._mine["loader"])
            return
        loaders.load(self.job.loader, self._mine["loader"])
        go_on_with = getattr(self.job.loader, "go_on_with", None)
        if go_on_with is not None:
            go_on_with(self._mine["random"])

    @contextlib.contextmanager
    def _refused(self, undo=None):
        """Without `strict`, a CheckpointError is one more misfit, and `undo` takes back what was set by then."""
        try:
            yield
        except CheckpointError as error:
            if self.strict:
                raise
            self.misfits.append(str(error))
            if undo is not None:
                undo()


def _beside_parameters_on_devices_of(before, state):
    """`state` of an optimiser, with what belongs to none of its parameters on the devices of what it had `before`: a learning rate that is a tensor, say.
    Torch brings the rest to where the parameters are."""
    if not isinstance(state.get("state"), dict):
        # Torch says what is wrong with it.
        return state
    numbers = {number for group in state["param_groups"] for number in group["params"] if type(number) is int}
    beside = {key: one for key, one in state["state"].items() if key not in numbers}
    moved = on_devices_of(before, {"state": beside, "param_groups": state["param_groups"]})
    return {**state, "param_groups": moved["param_groups"], "state": {**state["state"], **moved["state"]}}


def _copied(state):
    """What it was before it was loaded over. As it is where it cannot be copied, as a tensor of a graph cannot: most replace what they had."""
    try:
        return copy.deepcopy(state)
    except Exception as error:
        if raised_by_signal(error):
            raise
        return state


def _loads_as_torch_does(one):
    """Whether it does with the tensors of a state what torch does, which is known: a module copies them, and an optimiser keeps them.
    Those with code of their own that loads get tensors in memory: it may keep them, or work with their elements."""
    if isinstance(one, torch.nn.Module) and _may_refuse(one):
        return False
    if any(getattr(one, f"_optimizer_load_state_dict_{when}_hooks", None) for when in ("pre", "post")):
        return False
    for kind in (torch.nn.Module, torch.optim.Optimizer):
        if isinstance(one, kind):
            return type(one).load_state_dict is kind.load_state_dict and "load_state_dict" not in vars(one)
    return False


def _may_refuse(one):
    """Whether it may fail to load a state whose names, shapes and types fit, or takes others: what is no module, and modules with
    loading code of their own. They are the few of which what they have is copied."""
    return not isinstance(one, torch.nn.Module) or bool(own_prefixes(one)) or has_own_extra_state(one)


def _given_places(name, optimizer, had, its_own):
    """[(unread tensor, where it is to be read to)]: what was unread in the optimiser's state has such a place in its stead, one that
    it `had` where that is one of `its_own` (id()s, of ownership.owned()), alike, can be written to and is no parameter's."""
    placing = _Placing(its_own, {memory_of(parameter) for parameter in parameters_of(optimizer) if not torch.nn.parameter.is_lazy(parameter)})
    for number, parameter in enumerate(list(optimizer.state)):
        state = optimizer.state[parameter]
        optimizer.state[parameter] = placing.placed(state, had.get(parameter), parameter, f"{name}/state/{number}")
    return list(placing.places.values())


class _Placing:
    """`taken`: memory that nothing more may be read to."""

    def __init__(self, its_own, taken):
        self.its_own = its_own
        self.taken = taken
        self.places = {}

    def placed(self, value, had, parameter, name):
        if isinstance(value, Unread):
            return self._place(value, had, parameter, name)
        if isinstance(value, dict):
            had = had if isinstance(had, dict) else {}
            placed = {key: self.placed(one, had.get(key), parameter, f"{name}/{key}") for key, one in value.items()}
            if type(value) is dict:
                return placed
            # With whatever else it has, as the version that modules put down in their states.
            for key in placed:
                value[key] = placed[key]
            return value
        if type(value) in (list, tuple):
            had = had if type(had) in (list, tuple) and len(had) == len(value) else [None] * len(value)
            return type(value)(self.placed(one, its, parameter, name) for one, its in zip(value, had))
        return value

    def _place(self, value, had, parameter, name):
        # Several parameters may have one together, but for one that lies as its parameter does.
        key = id(value), id(parameter) if is_dtensor(parameter) else None
        if key in self.places:
            return self.places[key][1]
        alike = isinstance(had, torch.Tensor) and is_dtensor(had) == is_dtensor(parameter) and not had.requires_grad
        alike = alike and (had.shape, had.dtype, had.device) == (value.shape, value.dtype, value.device)
        # Others' tensors stay what they are, as with torch; and what shares memory here may have been apart when it was saved.
        if not alike or id(had) not in self.its_own or had.is_inference() or shares_memory(had) or memory_of(had) in self.taken:
            had = value.placed(parameter, name)
        self.taken.add(memory_of(had))
        self.places[key] = value, had
        return had


def load(name, one, state):
    try:
        one.load_state_dict(state)
    except Exception as error:
        if raised_by_signal(error):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # torch begins with a heading.
        why = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        raise CheckpointError(f"{name}: {type(one).__name__} does not take the state from the checkpoint: {why}") from error


def _warn(sentence, depth):
    """`depth`: of the line that called restore()."""
    _notices.warn(f"stallscope: {printable(sentence)}", depth)
