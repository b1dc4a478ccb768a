"""Idle time of an asynchronous device, with a fake one that does its work by the clock."""

from collector import run

FAKE = """
import time

class Device:
    '''Work ends at `free_ns`; an event is complete when everything before it is.'''

    def __init__(self):
        self.free_ns = 0

    def work(self, seconds):
        self.free_ns = max(self.free_ns, time.monotonic_ns()) + int(seconds * 1e9)

    def ready(self):
        return True

    def record(self):
        return max(self.free_ns, time.monotonic_ns())

    def query(self, event):
        return event <= time.monotonic_ns()

    def elapsed_ms(self, first, last):
        return (last - first) / 1e6

    def recycle(self, event):
        pass

device = Device()

def get():
    return device

class Broken(Device):
    def record(self):
        raise RuntimeError("the device fell off the bus")

def broken():
    return Broken()
"""

TRAIN = """
import time, fake
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.05)
        return index

for batch in DataLoader(Slow()):
    fake.device.work(0.02)
    print(fake.device.free_ns)
time.sleep(0.1)
"""


THREADS = """
import threading, torch
from torch.utils.data import TensorDataset

def evaluate():
    with torch.no_grad():
        for batch in DataLoader(TensorDataset(torch.arange(5))):
            time.sleep(0.01)

thread = threading.Thread(target=evaluate)
thread.start()
for batch in DataLoader(Slow()):
    fake.device.work(0.02)
    if thread.is_alive():
        thread.join()
time.sleep(0.1)
"""


def job(python, tmp_path, device, train=TRAIN):
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / "train.py").write_text(train)
    done = run([python, tmp_path / "train.py"], STALLSCOPE_DEVICE=device)
    assert (done.code, done.err) == (0, "")
    return done


def test_the_device_is_idle_from_the_end_of_its_work_to_the_end_of_the_wait(python, tmp_path):
    done = job(python, tmp_path, "fake:get")
    trainer = done.collector.trainer()
    waits = trainer.of("Wait")
    free_ns = [0, *map(int, done.out.split())]
    # For each wait, from the end of the work queued before it.
    true = {wait.time_ns: wait.time_ns - max(wait.enter_ns, free) for wait, free in zip(waits, free_ns)}
    idles = trainer.of("DeviceIdle")
    assert len(waits) == 8 and len(idles) >= 7
    short_ns = [true[idle.wait_exit_ns] - idle.idle_ns for idle in idles]
    # Less is seen where the thread loses its CPU within the hooks, as it will not each time; more never.
    assert 0 <= min(short_ns) < 1_000_000 and all(idle.idle_ns >= 0 for idle in idles)


def test_the_device_is_asked_in_the_training_thread_alone(python, tmp_path):
    trainer = job(python, tmp_path, "fake:get", TRAIN.split("for batch")[0] + THREADS).collector.trainer()
    # The other thread's loader is none of training's.
    trained = {wait.time_ns for wait in trainer.of("Wait")}
    assert len(trained) == 8
    idles = trainer.of("DeviceIdle")
    assert len(idles) >= 7 and {idle.wait_exit_ns for idle in idles} <= trained


def test_a_device_that_fails_is_given_up(python, tmp_path):
    trainer = job(python, tmp_path, "fake:broken").collector.trainer()
    assert len(trainer.of("Wait")) == 8 and trainer.of("DeviceIdle") == []
    (outcome,) = trainer.facts_of("unavailable")
    assert "fell off the bus" in outcome["what"]
