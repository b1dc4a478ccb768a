"""A pack that is changed while it is read, and between two runs: readers keep what they opened, or say that it is another one."""

import pickle
import shutil
import subprocess

import pytest
from collector import PACKAGE  # noqa: F401  where the package is

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

from pack_sets import PICTURES, as_array, fill, packed, program  # noqa: E402

import stallscope  # noqa: E402

FILES = 120


def act(*words):
    done = subprocess.run([program(), "pack", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def texts(tmp_path):
    """A pack of numbered texts of three classes."""
    for number in range(FILES):
        path = tmp_path / "set" / "abc"[number % 3] / f"{number:03}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{number:03}".encode() * 30_000)
    return packed(tmp_path / "set")


def numbers(batches):
    return sorted(int(data[:3]) for batch in batches for data in batch)


def test_deleted_pictures_are_gone_for_who_opens_it_then(tmp_path):
    pack = packed(fill(tmp_path / "set"))
    before = stallscope.PackedImageFolder(pack, transform=as_array)
    state = pickle.dumps(before)
    act("delete", pack, "cat/10.png", "cat/deep")
    after = stallscope.PackedImageFolder(pack, transform=as_array)
    assert (len(before), len(after), after.classes) == (len(PICTURES), len(PICTURES) - 3, before.classes)
    assert [target for _, target in after.samples] == [target for path, target in before.samples if "/10." not in path and "/deep/" not in path]
    assert len([before[index] for index in range(len(before))]) == len(PICTURES)
    with pytest.raises(stallscope.PackError, match="is in another state than where it was opened first"):
        pickle.loads(state)


def test_a_deletion_that_was_interrupted_is_warned_of(texts):
    shutil.copy(f"{texts}/snapshot", f"{texts}.old")
    act("delete", texts, "a/000")
    shutil.copy(f"{texts}.old", f"{texts}/snapshot")
    with pytest.warns(RuntimeWarning, match="has other deletions than the pack"):
        dataset = stallscope.PackedDataset(texts)
    assert len(dataset) == FILES and dataset[0][:3] == b"000"


def test_who_reads_a_purged_pack_on_hears_of_it(texts):
    before = stallscope.PackedDataset(texts)
    act("delete", texts, *(before.name(index) for index in range(1, FILES) if index % 4))
    act("purge", texts, "--live", "100")
    with pytest.raises(stallscope.PackError, match="in another state than when it was opened, and .* is gone; open it anew"):
        before[0]
    after = stallscope.PackedDataset(texts)
    assert [after[index] for index in range(len(after))] and len(after) == FILES // 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_position_within_an_epoch_is_of_one_state_of_the_pack(texts, workers):
    def loader():
        dataset = stallscope.PackedDataset(texts)
        shuffle = stallscope.Shuffle(40, "32MiB")
        return stallscope.DataLoader(dataset, batch_size=10, shuffle=shuffle, num_workers=workers, collate_fn=list)

    first = loader()
    between = first.state_dict()
    batches = iter(first)
    begun = [next(batches) for _ in range(3)]
    state, own = first.state_dict(), first.sampler.state_dict(batches=3)
    # The same files in other chunks: one that was deleted comes back.
    act("delete", texts, "a/000")
    act("append", texts, f"{texts[: -len('.pack')]}")
    assert len(stallscope.PackedDataset(texts)) == FILES
    for load, position in ((loader().load_state_dict, state), (loader().sampler.load_state_dict, own)):
        with pytest.raises(ValueError, match="within an epoch of another state of the pack: files were added, deleted or purged"):
            load(position)
    again = loader()
    again.load_state_dict(between)
    assert numbers(again) == list(range(FILES))
    assert numbers([*begun, *batches]) == list(range(FILES)), "what was opened before is read to its end"
