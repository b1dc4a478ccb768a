"""Which of the passes over a loader trains, where somebody says when a step was trained: the loader's position is that of this one."""

import weakref

import torch.utils.data

from stallscope import _notices

from .between import Between


class Trained(torch.utils.data.DataLoader):
    """The part of `Positioned` that hears of steps."""

    _epochs = 0
    # Passes that were begun, so far and when the last step was trained.
    _begun = 0
    _begun_at_step = 0
    # Whether somebody says when a step was trained; the pass that trains, and all that are under way.
    _hears_steps = False
    _training = None
    _passes = ()
    # Of the passes that were under way since the last step.
    _ends = ()
    # The end of the one that trains or did, and how many batches the last one had trained with that was left before its end.
    _trained_end = None
    _left_at = None
    # What is drawn between a step and the next batch.
    _between = None
    # A position that was loaded and is not taken up yet, and whether a step was trained all the same.
    _resume = None
    _warned_of_passes = False
    # Steps since one had a batch of ours; the ends of the passes that gave batches for the last step, and whether several did so again and again.
    _steps_without = 0
    _gave_last: frozenset = frozenset()
    _has_two_passes = False
    # The position that the newest pass took up, and its end.
    _taken_up = None
    # Where we draw the samples ourselves.
    _order = None

    def hear_steps(self, between=None):
        """From here on `stepped` is called for each training step: the position is that of the pass that trains, and
        epochs are passes that trained. Other passes are looks: `next(iter(loader))`, a pass to calibrate with. (Where we draw
        the order ourselves they use draws up.)"""
        if self._hears_steps:
            return
        self._hears_steps = True
        # Of loaders that one loop iterates, one.
        self._between = between or Between()
        if self._resume is None:
            # No step showed that any of them trained.
            self._epochs -= self._begun - self._begun_at_step
            self._begun_at_step = self._begun

    def gave_since_step(self):
        """The passes under way that have handed over batches since the last step."""
        return [one for one in self._under_way() if one.current.batches != one.current.batches_at_step]

    def left_within(self, by_hand):
        """Whether the loop was left before its pass came to its end, so that the position is the next epoch's. `by_hand`: as for `stepped`."""
        if self._resume is not None or self._under_way():
            return False
        if by_hand:
            return any(end.gave and not end.reached for end in self._ends)
        return self._trained_end is not None and not self._trained_end.reached

    def stepped(self, by_hand=False, of_others=False):
        """A step was trained with what was handed over since the last one. `by_hand`: somebody who says nothing of steps
        saves, so that every pass since the last time has trained. `of_others`: other loaders have handed over batches for it."""
        if not self._hears_steps:
            return
        self._between.stepped()
        ahead = self.gave_since_step()
        for one in ahead:
            one.current.batches_at_step = one.current.batches
            one.current.end.trained = True
        given = any(end.gave and not end.trained for end in self._ends)
        whole = given and not (ahead or by_hand or of_others)
        self._look_at_passes(ahead, given or by_hand)
        self._ends = tuple(one.current.end for one in self._under_way())
        if self._resume is not None and not (by_hand or of_others):
            self._not_taken_up(ahead)
        begun, self._begun_at_step = self._begun - self._begun_at_step, self._begun
        if by_hand:
            self._epochs += begun
            if ahead:
                ahead[-1].current.epoch = self._epochs - 1
        if whole:
            # One step of all that passes gave which are over: a gradient of a whole epoch, or a script that counts epochs as steps.
            self._epochs, self._training, self._taken_up = self._epochs + 1, None, None
        if not ahead:
            return
        if self._trains() not in ahead or by_hand:
            self._training = weakref.ref(ahead[-1])
        current = self._trains().current
        self._trained_end, current.end.batches = current.end, current.batches
        self._epochs = current.epoch + 1
        self._taken_up = None

    def steps_without(self):
        """For how many steps no batch came from here and no pass was under way; None where nobody says when a step was trained."""
        return self._steps_without if self._hears_steps else None

    def has_two_passes(self):
        """Whether a step is trained with batches of several passes: a position is that of one. (A look gives none for two steps one after the other.)"""
        return self._has_two_passes

    def has_order_elsewhere(self):
        """Whether another pass has begun within the one that trains, where we draw the order ourselves: draws go on from the newest one, and what is
        left of the other is part of no position."""
        trains = self._trains()
        return trains is not None and not trains.ended and trains.current.course is not None and trains.current.course.kept is not None

    def _look_at_passes(self, ahead, given):
        is_used = given or ahead or any(not one.ended for one in self._under_way())
        self._steps_without = 0 if is_used else self._steps_without + 1
        gave = frozenset(one.current.end for one in ahead)
        self._has_two_passes = self._has_two_passes or len(gave & self._gave_last) > 1
        self._gave_last = gave

    def _not_taken_up(self, ahead):
        """A step was trained while the position that was loaded waits for a pass: with batches of passes from before, which are `ahead`, or of
        what nobody here knows."""
        if ahead:
            # The position is where training is.
            self._resume = None
        if not self._warned_of_passes:
            self._warned_of_passes = True
            _notices.warn(
                "stallscope: this step was trained with batches that do not go on from the checkpoint, as the loader was not iterated anew since "
                "restore(): call iter(loader), or begin the loop over it, after restore()",
                5,
            )

    def _under_way(self):
        return [one for one in (reference() for reference in self._passes) if one is not None]

    def _trains(self):
        return self._training() if self._training is not None else None
