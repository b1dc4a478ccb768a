"""What can only be tried where there is a GPU: state on it is saved as it was and comes back so, and nothing of ours brings one
into use that the job does not use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from collector import PACKAGE

torch = pytest.importorskip("torch", reason="SKIPPED: this Python has no torch")

from stallscope import Checkpointer  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("SKIPPED: there is no GPU here", allow_module_level=True)

STALLSCOPE = Path(os.environ.get("STALLSCOPE_BINARY", PACKAGE.parents[0] / "release" / "stallscope"))
SMALL_FLOATS = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]


class Training:
    """A network with dropout and mixed precision, whose next losses depend on everything that a checkpoint holds."""

    def __init__(self, folder):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)
        ).to("cuda", memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, capturable=True)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=3)
        self.average = torch.optim.swa_utils.AveragedModel(self.model, device="cuda")
        self.saver = Checkpointer(
            folder, model=self.model, optimizer=self.optimizer, scaler=self.scaler, average=self.average, every=10**9, signals=()
        )

    def step(self):
        images = torch.rand(16, 3, 8, 8, device="cuda").to(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(self.model(images), torch.arange(16, device="cuda") % 10)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.model)
        self.saver.step()
        return loss.item()


def test_training_on_a_gpu_goes_on_as_if_it_had_not_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        first = Training(tmp_path)
        for _ in range(5):
            first.step()
        first.saver.save(wait=True)
        went_on = [first.step() for _ in range(5)]
        first.saver.close()
        second = Training(tmp_path)
        assert second.saver.restore().step == 5
        assert [second.step() for _ in range(5)] == went_on
        for one, other in zip(first.model.parameters(), second.model.parameters()):
            assert one.device == other.device and one.stride() == other.stride() and torch.equal(one, other)
        assert first.scaler.state_dict() == second.scaler.state_dict()
        second.saver.close()
    finally:
        torch.use_deterministic_algorithms(False)


def restored(folder, state):
    saver = Checkpointer(folder, state=state, signals=())
    saver.restore()
    saver.close()
    return state


def test_all_kinds_of_tensors_on_a_gpu_come_back(tmp_path):
    made = [torch.rand(3), torch.tensor(7), torch.zeros(0, 4), torch.rand(4, 6).t(), torch.rand(9)[::2], torch.rand(8)[3:]]
    made += [torch.ones(2, dtype=one) for one in (torch.bool, torch.bfloat16, torch.half, torch.double, torch.cfloat, torch.int8)]
    made += [torch.rand(5).to(one) for one in SMALL_FLOATS]
    state = {str(at): tensor.cuda() for at, tensor in enumerate(made)} | {"here": torch.rand(3)}
    before = {name: tensor.clone() for name, tensor in state.items()}
    saver = Checkpointer(tmp_path, state=state, signals=())
    saver.step()
    saver.save(wait=True)
    saver.close()
    for name, tensor in restored(tmp_path, {name: torch.zeros_like(tensor) for name, tensor in state.items()}).items():
        assert tensor.dtype == before[name].dtype and tensor.device == before[name].device, name
        assert tensor.float().equal(before[name].float()) if not tensor.is_complex() else tensor.equal(before[name]), name


@pytest.mark.parametrize("stream", [None, "its own"])
def test_a_save_holds_one_step_whole_whatever_is_queued(tmp_path, stream):
    """The work that makes the state is still queued as it is saved, on the default stream or on one of the job's own, and is
    followed at once by work that changes it."""
    own = torch.cuda.Stream() if stream else torch.cuda.current_stream()
    state = {str(at): torch.zeros(4 << 20, device="cuda") for at in range(8)}
    saver = Checkpointer(tmp_path, state=state, keep=20, every=10**9, signals=())
    busy = torch.rand(4096, 4096, device="cuda")
    for step in range(1, 6):
        with torch.cuda.stream(own):
            for _ in range(20):
                busy = torch.nn.functional.normalize(busy @ busy)
            for tensor in state.values():
                tensor.fill_(step)
        saver.step()
        saver.save()
        with torch.cuda.stream(own):
            for tensor in state.values():
                tensor.fill_(-step)
        assert saver._saver.wait(60.0)
    saver.close()
    for step in range(1, 6):
        back = {name: torch.zeros(4 << 20, device="cuda") for name in state}
        saver = Checkpointer(tmp_path, state=back, signals=())
        saver.restore(step=step)
        saver.close()
        assert [tensor.unique().tolist() for tensor in back.values()] == [[step]] * 8


def test_the_driver_takes_the_memory_that_is_copied_to(tmp_path):
    state = {"tensor": torch.rand(1 << 20, device="cuda")}
    saver = Checkpointer(tmp_path, state=state, signals=())
    saver.step()
    saver.save(wait=True)
    pinned = saver._copying.device.pinned
    assert pinned and all(taken for _, taken in pinned.values())
    saver.close()
    assert not saver._copying.device.pinned
    # The next error of CUDA's would be another's: none is left behind.
    torch.cuda.synchronize()


USES_NO_GPU = """
import json, torch
from torch.utils.data import DataLoader
loader = DataLoader(torch.arange(64.0).unsqueeze(1), 4, num_workers=2)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for batch in loader:
    model(batch).sum().backward()
    optimizer.step()
print(json.dumps(torch.cuda.is_initialized()))
"""


def test_a_job_without_a_gpu_gets_no_context_on_one():
    command = [STALLSCOPE, "run", "--quiet", "--no-kernel", "-o", "/dev/null", "--", sys.executable, "-c", USES_NO_GPU]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) is False


CAPTURES = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(64, 64).cuda()
static = torch.rand(8, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
loader = iter(DataLoader(torch.rand(800, 64), 8, num_workers=2))
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        static.copy_(next(loader), non_blocking=True)
        optimizer.zero_grad()
        model(static).sum().backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    # A batch is taken while the graph is captured: its wait must not be recorded in it.
    taken = next(loader)
    optimizer.zero_grad()
    model(static).sum().backward()
    optimizer.step()
for batch in loader:
    static.copy_(batch, non_blocking=True)
    graph.replay()
torch.cuda.synchronize()
print("captured and replayed")
"""


def test_a_job_that_captures_graphs_runs_on(tmp_path):
    script = tmp_path / "captures.py"
    script.write_text(CAPTURES)
    alone = [sys.executable, script]
    for command in (alone, [STALLSCOPE, "run", "--quiet", "--no-kernel", "-o", tmp_path / "it.stall", "--", *alone]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "captured and replayed" in done.stdout, (command, done.stdout + done.stderr)
