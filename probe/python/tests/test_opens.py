"""Timed opens and reads, where they are asked for."""

from collector import run, run_warm

TRAIN = """
import builtins, copy, io, os, pickle, sys, pathlib, time, torch
from torch.utils.data import DataLoader, Dataset

folder = pathlib.Path(sys.argv[1])
for n in range(8):
    (folder / str(n)).write_bytes(bytes([n]) * 100_000)

class Files(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        # A sample that takes a millisecond has a record of its own.
        time.sleep(0.002)
        if index % 2:
            return torch.tensor([index, 0])
        with open(folder / str(index), "rb") as file:
            return torch.tensor([len(file.read()), file.peek(1) == b""])

class Holder:
    opener = open

for workers in (0, 1):
    for batch in DataLoader(Files(), batch_size=4, num_workers=workers):
        print(batch.tolist())
with Holder().opener(folder / "3", "rb") as file:
    print(type(file).__name__, file.mode, file.read(3), file.name == folder / "3", file.seek(0, 2))
print(pickle.loads(pickle.dumps(open)) is open, copy.deepcopy(open) is open, open.__module__, open.__name__)
with open(folder / "3") as file:
    print(type(file).__name__, len(file.read()))
try:
    open(folder / "none", "rb")
except FileNotFoundError as error:
    print(error.filename == folder / "none", error.errno)
"""


def test_reading_is_distinguished_from_the_rest(python, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    command = [python, tmp_path / "train.py", tmp_path]
    done = run(command, STALLSCOPE_OPENS="1")
    assert (done.code, done.out, done.err) == (0, run_warm(command).out, "")
    producers = [process for process in done.collector.processes if process.of("Sample")]
    assert len(producers) == 2
    for producer in producers:
        samples = producer.of("Sample")
        assert [sample.read_ns > 0 for sample in samples] == [True, False] * 4
        assert all(sample.read_ns <= sample.time_ns - sample.start_ns for sample in samples)
        last = [clock for clock in producer.of("Clock") if clock.at == "batch_ready"][-1]
        assert last.read_ns >= sum(sample.read_ns for sample in samples), "the thread has read other files as well"


def test_nothing_is_timed_unless_asked_for(python, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    done = run([python, tmp_path / "train.py", tmp_path])
    assert done.code == 0
    assert {sample.read_ns for process in done.collector.processes for sample in process.of("Sample")} == {0}
