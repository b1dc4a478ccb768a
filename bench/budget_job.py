"""A job that trains with checkpoints and without, in turns: `budget_job.py FOLDER '{"pairs": 60, "turn_s": 3, …}'`.

The state is some 40 MB. Turns without are those in which the period is set so long that no save begins; one with ends when
its last save has drained. Prints a list of `[with, without]`, each `{"seconds", "steps", "saves", "accounted_s"}`, and what
one save costs.
"""

import json
import sys
import time

import torch

import stallscope

NEVER_S = 1e9


class Job:
    def __init__(self, folder, multiplications, threads, **arguments):
        torch.set_num_threads(threads)
        self.multiplications = multiplications
        self.model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(40)))
        self.checkpointer = stallscope.Checkpointer(folder, model=self.model, keep=2, **arguments)
        self.saver, self.timing = self.checkpointer._saver, self.checkpointer._when.timing
        self.begun_at, self.saves = 0, 0

    def step(self):
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1e-6)
            for _ in range(self.multiplications):
                torch.mm(self.model[0].weight, self.model[1].weight)
        self.checkpointer.step()
        if self.checkpointer._begun_at != self.begun_at:
            self.begun_at = self.checkpointer._begun_at
            self.saves += 1

    def turn(self, seconds, saving):
        """Trains for so long, or until the last save has drained."""
        self.timing.set_interval(None if saving else NEVER_S)
        began, saves, spent = time.perf_counter(), self.saves, self.timing.costs()[0]
        steps, held = 0, not saving
        while (lasted := time.perf_counter() - began) < seconds or self.saver.working():
            if lasted >= seconds and not held:
                held = True
                self.timing.set_interval(NEVER_S)
            self.step()
            steps += 1
        lasted = time.perf_counter() - began
        accounted = self.timing.costs()[0] - spent
        return {"seconds": lasted, "steps": steps, "saves": self.saves - saves, "accounted_s": accounted}


def main():
    case = json.loads(sys.argv[2])
    pairs, turn_s = case.pop("pairs"), case.pop("turn_s")
    job = Job(sys.argv[1], **case)
    # Rules profile first, and adapt.
    job.turn(10, True)
    job.turn(turn_s, False)
    measured = []
    for number in range(pairs):
        # First one, then the other, so that what drifts favours neither.
        order = (True, False) if number % 2 else (False, True)
        turns = {saving: job.turn(turn_s, saving) for saving in order}
        measured.append([turns[True], turns[False]])
    save_s = job.timing.costs()[2]
    job.checkpointer.close()
    print(json.dumps({"pairs": measured, "save_s": save_s}), flush=True)


if __name__ == "__main__":
    main()
