"""What a Checkpointer tells its user: warnings, each trouble once, and lines on stderr."""

from stallscope import _notices

from .errors import printable
from .signals import say

# As for optimisers (idle.py).
_STEPS_WITHOUT = 10


class Telling:
    """Of one Checkpointer's folder. `trust`: whether restore() takes whatever it finds."""

    def __init__(self, folder, trust):
        self.folder = folder
        self.trust = trust
        self._warned = set()

    def warn(self, sentence, kind=None):
        """Whether it was the first time: a warning of the same trouble is given once; another file does not make it another."""
        kind = kind or sentence.rpartition(": ")[2]
        if kind in self._warned:
            return False
        self._warned.add(kind)
        _notices.warn(f"stallscope: {printable(sentence)}", 4)
        return True

    def warn_of_untrusted(self, untrusted):
        """Restoring is the wrong time to learn that it takes more than was given. `untrusted`: types by name."""
        for name, kind in {} if self.trust else untrusted.items():
            self.warn(
                f"{name} is a {kind.__module__}.{kind.__qualname__}, which restore() takes with trust=True alone, as it is pickled: save "
                f"plain data in its place, or give its class a state_dict(), or pass trust=True",
                kind,
            )

    def warn_of_unsaved(self, unsaved):
        """`unsaved`: parameters by the name of the optimiser that trains them (state.Job.unsaved)."""
        for name, lost in unsaved.items():
            some = f"{len(lost)} parameters" if len(lost) > 1 else "a parameter"
            self.warn(
                f"{name} trains {some} of no object given here (of shape {list(lost[0].shape)}), and restore() would leave what was "
                "learnt there out: pass the module that has it as a keyword of its own, or put it into state"
            )

    def warn_of_idle(self, idle):
        """`idle`: steps by the name of the optimiser that made none of them (idle.Idle)."""
        for name, steps in idle.items():
            self.warn(
                f"{name} has not stepped in the last {steps} steps. Has the script put another optimiser in its place? Only the one that was given is "
                "saved: keep that, with add_param_group() for new parameters, or close() this Checkpointer and make another one",
                f"{name} is idle",
            )

    def warn_of_loader(self, loader):
        """What shows at a save that a resume is not going to train with the same samples. `loader`: what loaders.of() gave."""
        steps = loader.steps_without() if hasattr(loader, "steps_without") else None
        if steps is not None and steps >= _STEPS_WITHOUT:
            self.warn(
                f"the last {steps} steps had no batch of the loader that was given. Does training iterate another one, made anew for each epoch? Only the "
                "position of the one that was given is saved, and a resume begins with its epoch: make the loader once, before the Checkpointer",
                "the loader is idle",
            )
        if hasattr(loader, "has_two_passes") and loader.has_two_passes():
            self.warn(
                "each step is trained with batches of several passes over one loader, as in zip(loader, loader), and a position is that of one pass, so "
                "that a resume trains with other batches: make a loader for each pass and give them as loader=[first, second]",
                "several passes",
            )
        elif hasattr(loader, "has_order_elsewhere") and loader.has_order_elsewhere():
            self.warn(
                "another iteration of the loader began within the epoch that trains, and with sampling= the draws go on from the newest, so that a resume "
                "within this epoch trains with other batches: make another loader to look at batches with",
                "another iteration",
            )
        for name in loader.unkept() if hasattr(loader, "unkept") else ():
            self.warn(
                f"{name}, which the loader's sampler has, changed and is not saved, as it is no plain data of the sampler's own: if the order of samples "
                "depends on it, a resume goes on in another order; keep it in numbers, lists or arrays",
                f"{name} is not kept",
            )

    def of_left(self, error, loader, by_hand):
        """A save while `error` is handled, None without one. A loop that breaks off ends its epoch, and where something was raised nobody meant to."""
        if error is not None and hasattr(loader, "left_within") and loader.left_within(by_hand):
            self.warn(
                f"{type(error).__name__} left the loop in mid-epoch, and a checkpoint that is saved now goes on with the next epoch. To go on with the "
                'next batch after Ctrl-C, name it: signals=("SIGTERM", "SIGINT") has the next step() save',
                "the loop was left",
            )

    def of_failed(self, step, why, failures, newest):
        """Each save that failed: a warning is shown once, and what goes on failing is to be seen."""
        sentence = f"No checkpoint of step {step}: {why}"
        if not self.warn(sentence):
            say(f"{sentence} ({failures} saves have failed; {newest})")

    def of_other_runs(self, others):
        """`others`: names of their checkpoints, newest first."""
        if others:
            say(
                f"{self.folder} has {len(others)} checkpoint{'s' if len(others) > 1 else ''} of another run, the newest "
                f"{others[0]}, which this one does not remove: call restore() before training to go on from it, give this "
                f"run a folder of its own, or remove what is old with `stallscope ckpt gc {self.folder}`"
            )
