"""A job of steps of one length, for benchmarks of when to save: `goodput_job.py FOLDER '{"steps": 600, …}'`.

The state is some 40 MB. A step takes 50 ms, half of them work, as on the host of a device. Prints a line when training
begins, and one at its end.
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

    def work(self):
        torch.mm(self.model[0].weight, self.model[1].weight)

    def step(self):
        ends = time.perf_counter() + STEP_S
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1e-6)
            while time.perf_counter() < ends - STEP_S / 2:
                self.work()
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
    began = time.perf_counter()
    while loop.state["steps"] < steps:
        loop.step()
    result = {"step_s": STEP_S, "took_s": time.perf_counter() - began}
    loop.checkpointer.close()
    result.update(loop.checkpointer.costs)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
