"""Checkpoints of a training job: taken within a budget of its time, resumed exactly.

A save has two phases. In the first, training stands still for as long as it takes to copy its state into memory that is
held ready (some milliseconds for 200 MB); in the second, threads without the interpreter's lock write it, commit it
and read it back. `step()` decides when, by what saves were seen to cost.
"""

from __future__ import annotations

import atexit
import datetime
import os
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from stallscope import _native
from stallscope._hooks.knobs import raised_by_signal

from . import finding, ledger, loaders, ranks, reading
from .agreement import Agreement
from .copying import Copying
from .errors import CheckpointError
from .exits import close_at_exit
from .idle import Idle
from .keeping import Keeping
from .restoring import Restoring
from .signals import Termination, say
from .start import Start
from .state import Job, Stateful
from .telling import Telling
from .tree import to_bytes
from .when import When

_ASKED, _TERMINATED = "it was asked for", "a signal came"
# The other ranks' parts of a checkpoint are waited for so long before it is given up.
_PATIENCE_S = 120.0


class Checkpointer:
    """Takes checkpoints of a training job within a budget of its time, and restores the newest or a chosen one.

    With several ranks, rank 0 saves for all, and each rank saves its parts of DTensors, its generators and position. DTensors, as
    fully_shard() makes them, can be restored by any number of ranks, each its own parts. All parts form one checkpoint. Ranks make
    their Checkpointer together, after init_process_group, and call step(), save() and restore() alike.

    Args:
        folder: Folder of the checkpoints; created if missing. All ranks have to see it.
        model, optimizer, scheduler, scaler: Objects to save and restore; anything with state_dict() and load_state_dict().
        loader: The training DataLoader, whose position is saved; several as a list, or as a dict by name.
        state: Your own dict, saved with the rest and filled by `restore()`.
        overhead: The largest share of training time that checkpoints may cost, between 0 and 1.
        mtbf: The mean time between failures: "6h", seconds, or a timedelta. Without it, an estimate from the folder's history.
        every: A fixed interval instead of the budget: a number of steps, or a time ("10m", or a timedelta).
        rule: Another rule, for comparison: "young-daly", "checkfreq", "checkfreq-as-coded" or "pccheck".
        keep: How many of the newest verified checkpoints of this run are kept. Those of other runs are never removed: a run is
            everything that was trained from a start without restore(), including all jobs that resumed it.
        keep_every: Also keeps the first checkpoint at or after every so many steps, or of each such time ("1d").
        monitor: A metric, as passed to `save(metrics={...})`, by which the best checkpoints are kept as well.
        mode: "min" if a smaller metric is better, "max" if a larger one is.
        keep_best: How many of the best are kept.
        strict: If False, `restore()` sets the parts of a checkpoint that fit, and leaves the rest as it is.
        signals: Signals after which the next step() takes a last checkpoint, then lets the signal through; empty for none.
        sharded: Each rank's objects are its own part of the state, whatever that is; only as many ranks can restore it.
        trust: Allows `restore()` to unpickle any class in a checkpoint.
        **objects: Further objects with state_dict() and load_state_dict(), each by a name.

    Raises:
        CheckpointError: The folder cannot be used or has checkpoints of another model, or the state cannot be saved.
        TypeError: An object has no state_dict() or no load_state_dict().
        ValueError: An argument is invalid.

    Example:
        >>> import stallscope, torch
        >>> def train(steps):
        ...     model = torch.nn.Linear(2, 1)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     with stallscope.Checkpointer("ckpts", model=model, optimizer=optimizer) as checkpointer:
        ...         start = checkpointer.restore()
        ...         for step in range(start.step if start else 0, steps):
        ...             model(torch.ones(2)).backward()
        ...             optimizer.step()
        ...             checkpointer.step()
        ...         checkpointer.save(wait=True)
        ...     return start and start.step
        >>> train(2)
        >>> train(6)
        2
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        model: Stateful | None = None,
        optimizer: Stateful | None = None,
        scheduler: Stateful | None = None,
        scaler: Stateful | None = None,
        loader: Any = None,
        state: dict | None = None,
        overhead: float = 0.02,
        mtbf: str | float | datetime.timedelta | None = None,
        every: int | str | datetime.timedelta | None = None,
        rule: str = "budget",
        keep: int = 3,
        keep_every: int | str | datetime.timedelta | None = None,
        monitor: str | None = None,
        mode: str = "min",
        keep_best: int = 1,
        strict: bool = True,
        signals: Iterable[str | int] = ("SIGTERM",),
        sharded: bool = False,
        trust: bool = False,
        **objects: Stateful,
    ) -> None:
        named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        named = {name: one for name, one in named.items() if one is not None}
        # A script may change the folder that it is in.
        self.folder = os.path.abspath(folder)
        state = {} if state is None else state
        self._keeping = Keeping(keep, keep_every, monitor, mode, keep_best)
        self._job = Job({**named, **objects}, loaders.of(loader), state)
        if hasattr(self._job.loader, "hear_steps"):
            self._job.loader.hear_steps()
        self._sharded = sharded
        self._trust = trust
        self._strict = strict
        self._ranks = ranks.of_this_job()
        self._has_tensors = sharded or self._ranks.rank == 0
        self._pid = os.getpid()
        self._step = 0
        self._steps_are_counted = False
        self._prepares = True
        self._closed = False
        self._telling = Telling(self.folder, trust)
        self._agreement = Agreement(self._ranks, (*named.values(), *objects.values()), self._telling)
        self._idle = Idle(self._job.objects)
        self._in_flight: dict[str, Any] = {}
        # What cannot be saved raises now rather than in the midst of training, and on all ranks: none waits for one that failed.
        encoded, tensors = self._ranks.together(lambda: self._job.take_apart(0, "", True, trial=True), _shards)
        if not sharded:
            self._ranks.refuse_unlike(self._job.forms())
        self._telling.warn_of_untrusted(self._job.untrusted)
        if self._has_tensors:
            # Others' are what the first rank saves.
            self._telling.warn_of_unsaved(self._job.unsaved(tensors))
        other = self._ranks.from_first(self._other_job(encoded, tensors) if strict and self._ranks.rank == 0 else None)
        if other is not None:
            way_out = "name another folder, or move them away, or take what fits of them with strict=False"
            raise CheckpointError(f"{self.folder} has checkpoints of another job: {other}; {way_out}")
        ranks_here = self._ranks.rank, self._ranks.world_size
        keeping = self._keeping
        self._saver = _native.CheckpointSaver(
            self.folder, *ranks_here, keeping.keep, _PATIENCE_S, keeping.every, keeping.best
        )
        self._when = When(self._saver, overhead, mtbf, every, rule, decides=self._ranks.rank == 0)
        self._copying = Copying(self._saver)
        self._termination = Termination(self._newest, signals)
        self._saved_name = None
        self._begins_anew = True
        # The checkpoint of which only a part was set, so that the state here is nobody's.
        self._half_restored = None
        # The step of the last save.
        self._begun_at = 0
        close_at_exit(self)

    # The loop's side.

    def restore(self, step: int | str | None = None, *, begin_anew: bool = False) -> Start | None:
        """Sets everything to the newest checkpoint that verifies, or to a chosen one.

        Checkpoints that do not verify are moved to the folder's `quarantine`, and the next older one is used.

        Args:
            step: The chosen checkpoint: its step, its name as `stallscope ckpt ls` shows it, "latest", or "best" by the `monitor` metric.
            begin_anew: If there are checkpoints and none verifies, train from the beginning.

        Returns:
            Where training continues. None if the folder has no checkpoint, or with `begin_anew` none that verifies.

        Raises:
            CheckpointError: None verifies, the chosen one is missing or does not verify, or it does not fit the objects here.
                Then nothing was changed.

        Example:
            >>> import stallscope, torch
            >>> model = torch.nn.Linear(2, 1)
            >>> checkpointer = stallscope.Checkpointer("restored", model=model)
            >>> print(checkpointer.restore())
            None
            >>> checkpointer.save(wait=True)
            >>> checkpointer.restore().name
            'step-000000000'
            >>> checkpointer.restore(7)
            Traceback (most recent call last):
            stallscope.checkpoint.errors.CheckpointError: ...
            >>> checkpointer.close()
        """
        if not self._closed:
            # What is on its way may be the one.
            self._wait()
            self._hear()
        if step is None:
            found = finding.newest(self.folder, self._ranks, begin_anew)
        else:
            found = finding.chosen(self.folder, self._ranks, step)
        return None if found is None else self._put_back(found)

    def _opened(self, found):
        reader = reading.named(self.folder, found.name)
        same_world = reader.world == self._ranks.world_size
        if self._sharded and not same_world:
            raise CheckpointError(
                f"{found.name} has the parts of {reader.world} ranks and here are {self._ranks.world_size}: start with "
                f"{reader.world}, or see what it holds with `stallscope ckpt show {self.folder}`"
            )
        part = reading.Part(reader, self._ranks.rank if self._sharded else 0)
        own = reading.Part(reader, self._ranks.rank) if same_world else None
        return Restoring(self._job, part, own, self._trust, self._strict)

    def _put_back(self, found):
        restoring = self._ranks.together(lambda: self._opened(found))
        # An interrupt may come between any two tensors.
        before, self._half_restored = self._half_restored, found.name
        try:
            self._ranks.together(restoring.prepare)
        except BaseException:
            restoring.take_back()
            self._half_restored = before
            raise
        epoch, misfits = self._ranks.together(restoring.finish), restoring.misfits
        self._half_restored = None
        self._step = restoring.part.encoded["step"]
        self._begun_at = self._step
        self._agreement.restored(self._step)
        self._saved_name = found.name
        self._begins_anew = False
        if misfits:
            # What is trained from here on is another model, of which the old checkpoints are none.
            self._telling.warn(f"{found.name} fits in part: {'; '.join(misfits)}", "it fits in part")
        else:
            self._saver.continue_run(found.run)
        when = datetime.datetime.fromtimestamp(found.saved_wall_ns / 1e9, datetime.timezone.utc)
        return Start(self._step, epoch, found.name, when, found.passed, misfits)

    def step(self) -> None:
        """Marks the end of a training step, and saves when a save is due. Call it once after each step, with the state complete.

        A failed save raises nothing: training goes on, and a warning says why.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._step += 1
        self._steps_are_counted = True
        loader = self._job.loader
        self._trained()
        waited_ns = loader.take_waited_ns() if hasattr(loader, "take_waited_ns") else 0
        why = self._when.step(waited_ns)
        self._hear()
        if self._prepares:
            # From the first step on an optimiser has all of its state.
            self._prepares = False
            self._prepare()
        why = self._agreed(why)
        if why is None:
            return
        try:
            name = self._save(why, wait=why == _TERMINATED)
        except Exception as error:
            if raised_by_signal(error):
                raise
            # Training goes on without this one.
            self._tell_failed(self._step, error)
            name = None
        if why == _TERMINATED and self._termination.asked:
            self._last_words(name)

    def _pass_over(self, steps: int) -> None:
        """So many steps ended of which no checkpoint could be taken. For stallscope.lightning."""
        self._step += steps

    def save(self, wait: bool = False, *, metrics: Mapping[str, float] | None = None) -> None:
        """Saves now.

        Args:
            wait: Return when the checkpoint is durable; otherwise it is written in the background.
            metrics: Metrics of exactly this state, such as {"val_loss": 0.3}; with several ranks, those of rank 0 are kept.

        Raises:
            CheckpointError: The save failed before the call returned, the Checkpointer is closed, or it belongs to another process.
            ValueError: `metrics` lacks the metric that `monitor` names.

        Example:
            >>> import stallscope, torch
            >>> model = torch.nn.Linear(2, 1)
            >>> with stallscope.Checkpointer("saved", model=model, monitor="val_loss") as checkpointer:
            ...     checkpointer.save(wait=True, metrics={"val_loss": 0.3})
            ...     checkpointer.restore("best").name
            'step-000000000'
        """
        if self._closed:
            raise CheckpointError("this Checkpointer is closed; make a new one to save more")
        if os.getpid() != self._pid:
            raise CheckpointError("this process was forked from the one that saves: call save() there")
        measured = self._keeping.measured(metrics)
        self._telling.of_left(sys.exc_info()[1], self._job.loader, by_hand=not self._steps_are_counted)
        if not self._steps_are_counted:
            self._trained(by_hand=True)
        try:
            self._save(_ASKED, wait, measured)
        except CheckpointError:
            self._when.failed()
            raise

    @property
    def state(self) -> dict:
        """Your own dict, which is saved with the rest and filled by `restore()`. If another one is assigned, it is saved from
        then on."""
        return self._job.user

    @state.setter
    def state(self, state: dict) -> None:
        self._job.user = state

    def close(self) -> None:
        """Finishes the current save and accepts no more. Leaving a `with` block closes, and so does the interpreter's end.

        If a signal came and no step ended after it, the signal is let through.
        """
        if self._closed or os.getpid() != self._pid:
            return
        if self._termination.asked:
            # A save that is under way may be the one to go on from.
            self._wait()
            self._hear()
            came = f"{self._termination.name} came and no step ended after it"
            say(f"{came}: there is no last checkpoint, {self._newest()}")
        self._finish()
        if self._termination.asked:
            self._termination.go_on()

    def _finish(self):
        self._closed = True
        atexit.unregister(self._at_exit)
        self._termination.stop()
        try:
            self._wait()
            self._hear()
        finally:
            self._when.gone()
            self._copying.close()
            # Reading back what was saved last ends here.
            self._take_note(self._saver.close())

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    @property
    def costs(self) -> dict[str, float]:
        """The cost of checkpoints so far, in all runs of the job.

        Returns:
            Seconds by name: `spent` on checkpoints out of `trained`; what one `save` costs training; the time until it is
            durable (`persist`); and the `interval` in force.

        Example:
            >>> import stallscope, torch
            >>> with stallscope.Checkpointer("costs", model=torch.nn.Linear(2, 1)) as checkpointer:
            ...     sorted(checkpointer.costs)
            ['interval', 'persist', 'save', 'spent', 'trained']
        """
        return dict(zip(("spent", "trained", "save", "persist", "interval"), self._when.timing.costs()))

    # What happens behind it.

    def _trained(self, by_hand=False):
        if hasattr(self._job.loader, "stepped"):
            self._job.loader.stepped(by_hand)

    def _other_job(self, encoded, tensors):
        latest = reading.latest(self.folder)
        # Of another number of ranks each has another part; restore() says what to do then.
        if latest is None or self._sharded and latest.world != self._ranks.world_size:
            return None
        return self._job.differs_from(latest, encoded, tensors)

    def _agreed(self, why):
        """Why all ranks save now; None where they do not."""
        terminated = self._termination.asked
        if self._ranks.world_size > 1:
            ahead = partial(self._when.steps_ahead, self._step - self._begun_at)
            saves, terminated = self._agreement.reached(self._step, why is not None, terminated, ahead)
            why = (why or "rank 0 decided it") if saves else None
        return _TERMINATED if terminated else why

    def _prepare(self):
        try:
            _, tensors = self._job.take_apart(self._step, "", self._has_tensors, trial=True)
            self._copying.prepare(tensors, self._job.still())
        except Exception as error:
            if raised_by_signal(error):
                raise
            # Training goes on, and a save may do without.
            self._telling.warn(f"Memory for checkpoints cannot be prepared: {error}")

    def _save(self, why, wait, metrics=None):
        # The device would have done this without a save, too: no time of that counts as the save's.
        self._ranks.together(self._settle)
        began_ns = _native.now()
        encoded, tensors = self._taken_apart(why)
        ticket = self._ranks.from_first(self._saver.ticket(self._step) if self._ranks.rank == 0 else None)
        self._telling.warn_of_untrusted(self._job.untrusted)
        self._telling.warn_of_idle(self._idle.found(self._step))
        self._telling.warn_of_loader(self._job.loader)
        if self._begins_anew:
            # Now it is certain that this run goes on from none of them.
            self._begins_anew = False
            self._telling.of_other_runs(self._saver.of_other_runs())
        snapshot, copied_bytes = self._copying.snapshot(tensors, self._job.still())
        self._saver.persist(snapshot, ticket, to_bytes(encoded), metrics or {})
        copied_ns = _native.now()
        name = ticket.split(" ")[0]
        self._in_flight[name] = copied_ns
        self._begun_at = self._step
        self._when.saved(began_ns, copied_ns)
        ledger.snapshot(began_ns, copied_ns, copied_bytes)
        if not wait:
            return name
        self._saver.limit(0)
        self._wait()
        ended_ns = _native.now()
        self._when.blocked(ended_ns - copied_ns)
        ledger.waited(copied_ns, ended_ns)
        failed = self._hear(awaited=name)
        if failed is not None:
            raise CheckpointError(f"the checkpoint of step {self._step} could not be saved: {failed}")
        return name

    def _settle(self):
        if not self._copying.prepared and not self._job.is_distributed:
            self._copying.meet(self._job.take_apart(self._step, "", self._has_tensors)[1])
        self._copying.settle()

    def _taken_apart(self, why):
        if self._half_restored is not None:
            way_out = "call restore() again, or start this job anew"
            raise CheckpointError(f"{self._half_restored} was restored in part only, so the state here is neither it nor what was here before: {way_out}")
        # What one rank cannot take apart none saves: the others would wait for its part, or for its word. And a part that is of no whole would be found
        # out by who restores it.
        return self._ranks.together(lambda: self._job.take_apart(self._step, why, self._has_tensors), _shards if self._job.is_distributed else None)

    def _wait(self):
        # In slices, so that an interrupt is taken.
        while not self._saver.wait(0.2):
            pass

    def _hear(self, awaited=None):
        """Takes note of saves that have ended, or turned out bad when they were read back; why the one failed whose name
        is `awaited`, if it did."""
        return self._take_note(self._saver.outcomes(), awaited)

    def _take_note(self, outcomes, awaited=None):
        failed = None
        for outcome in outcomes:
            begun_ns = self._in_flight.pop(outcome.name, None)
            if outcome.error is not None:
                if outcome.name == awaited:
                    failed = outcome.error
                else:
                    self._tell_failed(outcome.step, outcome.error)
                continue
            self._saved_name = outcome.name
            self._when.written(outcome)
            if begun_ns is not None:
                ended_ns = min(begun_ns + outcome.write_ns + outcome.commit_ns, _native.now())
                ledger.persisted(begun_ns, ended_ns, outcome.written_bytes)
        return failed

    def _tell_failed(self, step, why):
        self._telling.of_failed(step, why, self._when.failed(), self._newest())

    def _last_words(self, name):
        if name is not None:
            say(f"{self._termination.name} came: {name} is the last checkpoint")
        else:
            say(f"{self._termination.name} came, and step {self._step} could not be saved: {self._newest()}")
        self._finish()
        self._termination.go_on()

    def _newest(self):
        return f"the newest is {self._saved_name}" if self._saved_name else "and none before"


def _shards(taken_apart):
    encoded, _ = taken_apart
    return encoded.get("shards", {})
