"""What a job could notice of the shim, and must not."""

import os
import sys

from collector import run, run_plain
from conftest import torch_version

DROPPED = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self):
        self.pid = os.getpid()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

    def __del__(self):
        with open(sys.argv[1], "a") as file:
            print("the trainer's" if os.getpid() == self.pid else "a worker's", file=file)

if __name__ == "__main__":
    # A forked worker has the trainer's references as well, and never drops it.
    loader = DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    print([batch.tolist() for batch in loader])
    del loader
"""

COUNTED = """
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler
from torch.overrides import TorchFunctionMode

class Data(Dataset):
    def __init__(self, kind):
        self.kind, self.asked = kind, 0

    def __len__(self):
        self.asked += 1
        return 4

    def __getitem__(self, index):
        return index

class Own(Sampler):
    def __init__(self):
        pass

    def __iter__(self):
        return iter(range(4))

class Batches(Own):
    @property
    def batch_size(self):
        raise RuntimeError("nobody asks for it")

    def __iter__(self):
        return iter([[0, 1], [2, 3]])

class Watching(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if "get" in str(function):
            print("watched")
        return function(*args, **(kwargs or {}))

own, batches, usual = Data("own"), Data("batches"), Data("usual")
for loader in (
    DataLoader(own, batch_size=2, sampler=Own()),
    DataLoader(batches, batch_sampler=Batches()),
    DataLoader(usual, batch_size=2),
):
    print([batch.tolist() for batch in loader])
print(own.asked, batches.asked, usual.asked > 0)
with Watching():
    for batch in DataLoader(own, batch_size=2, sampler=Own()):
        pass
"""

MANY = """
import torch
from torch.utils.data import DataLoader, TensorDataset
for size in range(1, 101):
    for batch in DataLoader(TensorDataset(torch.arange(size)), batch_size=size):
        pass
"""

INTERRUPTED = """
import sys
from torch.utils.data import DataLoader, TensorDataset
import torch
loader = DataLoader(TensorDataset(torch.arange(3)))
real = torch.is_grad_enabled
from stallscope._hooks import loader_registry
calls = 0

def interrupting():
    global calls
    calls += 1
    if calls == 3:
        raise KeyboardInterrupt
    return True

loader_registry._grad_enabled = interrupting
try:
    for batch in loader:
        pass
except KeyboardInterrupt:
    print("interrupted")
for batch in loader:
    pass
"""

OWN_FETCH = """
from torch.utils.data import DataLoader, Dataset, IterableDataset, dataloader

class Data(Dataset):
    def __init__(self):
        self.asked = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index

class Stream(IterableDataset):
    def __iter__(self):
        return Numbers()

class Numbers:
    def __init__(self):
        self.left = 8

    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left

    def __iter__(self):
        return self

def fetch(self, indices):
    assert type(self.dataset) is Data
    self.dataset.asked += len(self.dataset)
    return [*indices, self.dataset.asked]

def fetch_from(self, indices):
    assert type(self.dataset_iter) is Numbers
    if not self.dataset_iter.left:
        raise StopIteration
    return [next(self.dataset_iter) for _ in indices]

class OwnFetcher(dataloader._utils.fetch._BaseDatasetFetcher):
    fetch = fetch

def iterate():
    for workers in 0, 1:
        for dataset in Data(), Stream():
            print([[int(value) for value in batch] for batch in DataLoader(dataset, batch_size=2, num_workers=workers)])

fetchers, kinds = dataloader._utils.fetch, dataloader._DatasetKind
of_torch, creates = fetchers._MapDatasetFetcher, kinds.create_fetcher
methods = of_torch.fetch, fetchers._IterableDatasetFetcher.fetch

def create_fetcher(kind, *args):
    fetcher = creates(kind, *args)
    fetcher.fetch = (fetch if kind == kinds.Map else fetch_from).__get__(fetcher)
    return fetcher

of_torch.fetch, fetchers._IterableDatasetFetcher.fetch = fetch, fetch_from
iterate()
of_torch.fetch, fetchers._IterableDatasetFetcher.fetch = methods
fetchers._MapDatasetFetcher = OwnFetcher
iterate()
fetchers._MapDatasetFetcher = of_torch
kinds.create_fetcher = staticmethod(create_fetcher)
iterate()
"""


def job(python, tmp_path, text, *arguments):
    path = tmp_path / "train.py"
    path.write_text(text)
    return [python, path, *arguments]


def test_a_worker_drops_its_data_set_when_it_would_have(python, tmp_path):
    plain = run_plain(job(python, tmp_path, DROPPED, tmp_path / "plain"))
    done = run(job(python, tmp_path, DROPPED, tmp_path / "shim"))
    old = torch_version(python)[0].startswith("1.")
    # An old torch's spawned worker may be ended while it gives back a semaphore, which Python's tracker then reports.
    messages = [] if old and "resource_tracker" in done.err else done.err.splitlines()
    assert (done.code, done.out, messages) == (0, plain.out, [])
    assert any(process.of("Batch") for process in done.collector.processes)
    assert (tmp_path / "shim").read_text() == (tmp_path / "plain").read_text()
    if python == sys.executable and not old:
        assert "a worker's" in (tmp_path / "shim").read_text()


def test_the_jobs_own_code_is_not_called(python, tmp_path):
    command = job(python, tmp_path, COUNTED)
    plain, done = run_plain(command), run(command)
    assert plain.code == 0 and (done.code, done.out, done.err) == (0, plain.out, "")
    trainer = done.collector.trainer()
    assert trainer.facts_of("unavailable") == []
    facts = trainer.facts_of("loader")
    assert [fact["dataset_len"] for fact in facts][:3] == [None, None, 4]
    assert [fact["batch_size"] for fact in facts][:3] == [2, None, 2]
    assert [wait.samples for wait in trainer.of("Wait")] == [2] * 8


def test_a_fetch_of_the_jobs_own_meets_its_data_set(python, tmp_path):
    command = job(python, tmp_path, OWN_FETCH)
    plain, done = run_plain(command), run(command)
    assert plain.code == 0 and (done.code, done.out, done.err) == (0, plain.out, "")
    assert len(done.collector.trainer().of("Wait")) == 3 * 4 * 4
    # Nor does it meet what stands for the data set where the job has a cache.
    cached = run(command, STALLSCOPE_CACHE_BYTES=str(1 << 20), STALLSCOPE_RUNTIME_DIR=str(tmp_path / "run"))
    assert (cached.code, cached.out, cached.err) == (0, plain.out, "")


def test_loaders_that_are_gone_give_their_numbers_away(python, tmp_path):
    done = run(job(python, tmp_path, MANY))
    assert (done.code, done.err) == (0, "")
    waits = done.collector.trainer().of("Wait")
    assert [wait.samples for wait in waits] == list(range(1, 101))
    assert max(wait.loader for wait in waits) == 63


def test_no_module_of_the_scripts_own_runs_for_us(python, tmp_path):
    """One that is called as a module of Python's, and lies in the folder that comes first."""
    (tmp_path / "resource.py").write_text("print('it runs')\n")
    text = "from torch.utils.data import DataLoader\nprint(len(list(DataLoader(range(8), num_workers=2))))\n"
    command = job(python, tmp_path, text)
    plain, done = run_plain(command), run(command)
    assert (done.code, done.out) == (plain.code, plain.out) == (0, "8\n"), done.err


def test_an_interrupt_in_our_code_is_the_jobs(python, tmp_path):
    done = run(job(python, tmp_path, INTERRUPTED))
    assert (done.code, done.out, done.err) == (0, "interrupted\n", "")
    trainer = done.collector.trainer()
    assert [wait.batch for wait in trainer.of("Wait")] == [0, 0, 1, 2], "the second loop is seen"
    assert trainer.facts_of("unavailable") == []


def test_any_command_line_is_measured(python, tmp_path):
    arguments = [os.fsdecode(b"caf\xe9"), *["\x01" * 390] * 60]
    done = run(job(python, tmp_path, MANY.replace("101", "2"), *arguments))
    assert (done.code, done.err) == (0, "")
    trainer = done.collector.trainer()
    assert len(trainer.of("Wait")) == 1
    assert "caf?" in trainer.greeting["argv"] and 2 < len(trainer.greeting["argv"]) < 60


FOLLOWED = """
import os, sys, torch
from torch.utils.data import DataLoader

names = set()

def follow(frame, event, argument):
    names.add(frame.f_code.co_filename)

sys.settrace(follow)
for batch in DataLoader(list(range(8)), batch_size=4, shuffle=True):
    pass
sys.settrace(None)
print([name for name in sorted(names) if not name.startswith("<") and not os.path.exists(name)])
"""


def test_what_follows_a_script_line_by_line_finds_the_file_of_each(tmp_path):
    """coverage fails to report where it does not, but for names in angle brackets."""
    script = tmp_path / "followed.py"
    script.write_text(FOLLOWED)
    done = run([sys.executable, script])
    assert (done.code, done.out) == (0, "[]\n"), done.err


COMPILED = """
import warnings
import torch
import torch._dynamo
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
samples = [torch.full((4,), float(n)) for n in range(16)]

@torch.compile(backend="eager")
def epoch(loader):
    total = torch.zeros(())
    for batch in loader:
        total = total + model(batch).sum()
    return total

print([epoch(DataLoader(samples, batch_size=4, num_workers=workers)).item() for workers in (0, 1)])
counters = torch._dynamo.utils.counters
print(sorted((why.splitlines()[0], count) for why, count in counters["graph_break"].items()), counters["stats"]["unique_graphs"])
"""


def test_a_compiled_loop_over_a_loader_is_the_same_with_and_without(tmp_path):
    """And is cut into the same graphs: torch.compile does not trace our functions there."""
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    seen, plain = run([sys.executable, script]), run_plain([sys.executable, script])
    assert plain.code == 0, plain.err
    assert (seen.code, seen.out) == (0, plain.out), seen.err
    assert len(seen.collector.trainer().of("Wait")) == 2 * 4
