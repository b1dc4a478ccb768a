"""A daemon thread that iterates a loader when the interpreter ends is taken down inside the data set: no native
frame of ours may be around it then. (torch alone aborts in about half of such exits, so exit codes tell nothing.)"""

import textwrap

from collector import SAMPLE, run

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
    assert sum(record.id for process in done.collector.processes for record in process.of(SAMPLE)) == 8
