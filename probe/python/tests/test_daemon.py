"""Loaders in threads. A daemon thread that iterates one when the interpreter ends is taken down inside the data set: no
native frame of ours may be around it then. (torch alone aborts in about half of such exits, so exit codes tell nothing.)
And what training waits for does not show from a loader that another thread than the main one iterates."""

import textwrap

from collector import run

JOB = """
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Map(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index

class Stream(IterableDataset):
    def __iter__(self):
        yield from range(4)

for dataset in (Map(), Stream()):
    iterator = iter(DataLoader(dataset, batch_size=2))
    assert [len(batch) for batch in iterator] == [2, 2]
    fetch = iterator._dataset_fetcher.fetch
    assert type(fetch).__name__ == "function", fetch
    held = fetch.__closure__
    assert not any(type(cell.cell_contents).__name__ in ("Fetch", "Samples", "Stream", "Collate") for cell in held), held
print("python all the way")
"""


def test_the_trainers_own_batches_are_timed_in_python(python, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(JOB))
    done = run([python, script])
    assert (done.code, done.out) == (0, "python all the way\n"), done.err
    assert sum(record.count for process in done.collector.processes for record in process.of("Sample")) == 8


IN_A_THREAD = """
import threading
from torch.utils.data import DataLoader

got = []
def feed(workers):
    for batch in DataLoader(list(range(8)), batch_size=2, num_workers=workers):
        got.append(len(batch))

for workers in (0, 1):
    thread = threading.Thread(target=feed, args=(workers,))
    thread.start()
    thread.join()
print(got)
"""


def test_a_loader_in_a_thread_gives_a_sentence_and_no_waits(python, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(IN_A_THREAD)
    done = run([python, script])
    assert (done.code, done.out) == (0, f"{[2] * 8}\n"), done.err
    records = [record for process in done.collector.processes for record in process.of("Wait") + process.of("IterStart")]
    assert records == []
    outcome = {fact["what"] for process in done.collector.processes for fact in process.facts_of("unavailable")}
    assert any("iterated by a thread beside the main one" in sentence for sentence in outcome), outcome
