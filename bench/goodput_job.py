"""A job of steps of one length, which bench/goodput.py kills: `goodput_job.py FOLDER '{"steps": 600, …}'`.

The state is some 40 MB. Prints a line when training begins, and one at its end.
"""

import json
import sys
import time

import torch

import stallscope

STEP_S = 0.05


class Loop:
    """Steps, counted in a state."""

    def __init__(self, case):
        self.model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(40)))
        self.state = {"steps": 0}
        self.checkpointer = stallscope.Checkpointer(sys.argv[1], model=self.model, state=self.state, **case)

    def step(self):
        ends = time.perf_counter() + STEP_S
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1e-6)
        # Half of a step works, as a device's host does; the other half waits for it.
        while time.perf_counter() < ends - STEP_S / 2:
            torch.mm(self.model[0].weight, self.model[1].weight)
        time.sleep(max(0.0, ends - time.perf_counter()))
        self.state["steps"] += 1
        self.checkpointer.step()


def main():
    torch.set_num_threads(1)
    case = json.loads(sys.argv[2])
    steps = case.pop("steps")
    loop = Loop(case)
    loop.checkpointer.restore()
    print(json.dumps({"from": loop.state["steps"]}), flush=True)
    while loop.state["steps"] < steps:
        loop.step()
    loop.checkpointer.close()
    costs = loop.checkpointer.costs
    print(json.dumps({"step_s": STEP_S, "spent": costs["spent"], "trained": costs["trained"]}), flush=True)


if __name__ == "__main__":
    main()
