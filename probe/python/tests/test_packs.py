"""What is read from a pack is what was packed, as torchvision gives it of the folder; whatever reads it, and whatever became of it."""

import doctest
import importlib
import io
import os
import pickle
import shutil
import tarfile
import threading

import pytest
from collector import PACKAGE  # noqa: F401  where the package is

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("numpy")

import numpy  # noqa: E402
import pack_sets  # noqa: E402
from pack_sets import PICTURES, as_array, damage, fill, first_bytes, packed, plus_100, random_crop  # noqa: E402
from PIL import Image  # noqa: E402

import stallscope  # noqa: E402
from stallscope.data.cache import split_parts  # noqa: E402


@pytest.fixture
def folder(tmp_path, monkeypatch):
    # A pool of its own, which goes with its last loader.
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path / "run"))
    return fill(tmp_path / "set")


def equal(one, other):
    return len(one) == len(other) and all(numpy.array_equal(a, b) for a, b in zip(one, other))


def plain(samples):
    return [(as_array(picture), target) for picture, target in samples]


def everything(dataset):
    return [dataset[index] for index in range(len(dataset))]


def same(one, other):
    return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other))


def test_it_is_torchvisions_folder(folder):
    folders = pytest.importorskip("torchvision.datasets")
    theirs, ours = folders.ImageFolder(folder), stallscope.PackedImageFolder(packed(folder))
    assert ours.classes == theirs.classes and ours.class_to_idx == theirs.class_to_idx
    assert ours.targets == theirs.targets and len(ours) == len(theirs)
    assert ours.extensions == folders.folder.IMG_EXTENSIONS
    for mine, own in ((ours.samples, theirs.samples), (ours.imgs, theirs.imgs)):
        assert [(os.path.relpath(path, ours.root), target) for path, target in mine] == [
            (os.path.relpath(path, folder), target) for path, target in own
        ]
        assert mine[-1][1] == own[-1][1] and [target for _, target in mine[2:5]] == [target for _, target in own[2:5]]
    assert same(plain(everything(ours)), plain(everything(theirs)))
    assert equal(as_array(ours[-1][0]), as_array(theirs[-1][0]))
    with pytest.raises(IndexError):
        ours[len(ours)]
    more = {"transform": as_array, "target_transform": plus_100}
    theirs, ours = folders.ImageFolder(folder, **more), stallscope.PackedImageFolder(packed(folder), **more)
    assert same(everything(ours), everything(theirs))


def test_pictures_are_in_the_order_of_the_folder(folder):
    dataset = stallscope.PackedImageFolder(packed(folder))
    assert [os.path.relpath(path, dataset.root) for path, _ in dataset.samples] == [name for name, _ in PICTURES]
    assert dataset.classes == ["cat", "cat-like", "dog", "été"]
    for number, (name, _) in enumerate(PICTURES):
        with Image.open(os.path.join(folder, name)) as picture:
            assert equal(as_array(dataset[number][0]), as_array(picture.convert("RGB")))


def test_samples_come_in_the_order_in_which_they_lie(folder):
    files = stallscope.PackedDataset(packed(folder))
    (chunk,) = [name for name in os.listdir(f"{folder}.pack") if name.endswith(".chunk")]
    with open(f"{folder}.pack/{chunk}", "rb") as file:
        content = file.read()
    order = files.in_chunk_order()
    assert sorted(order) == list(range(len(files))) and order != sorted(order)
    assert content[64:].startswith(b"".join(files[index] for index in order))
    pictures = stallscope.PackedImageFolder(f"{folder}.pack")
    # The same, without what is no picture.
    named = [os.path.relpath(pictures.samples[picture][0], pictures.root) for picture in pictures.in_chunk_order()]
    assert named == [name for name in map(files.name, order) if name in dict(PICTURES)]


def test_a_loader_of_ones_own_gets_an_open_file(folder):
    dataset = stallscope.PackedImageFolder(packed(folder), loader=first_bytes)
    assert dataset[0] == (b"\x89PNG\r\n\x1a\n", 0)
    assert dataset.decode(bytearray(dataset.fetch(0))) == dataset[0]


def test_any_files_come_as_bytes(folder):
    dataset = stallscope.PackedDataset(packed(folder))
    names = [dataset.name(index) for index in range(len(dataset))]
    assert sorted(names) == sorted([name for name, _ in PICTURES] + pack_sets.OTHERS)
    assert names[:2] == ["readme.txt", "top.png"]
    for index, name in enumerate(names):
        with open(os.path.join(folder, name), "rb") as file:
            assert dataset[index] == file.read()
        assert dataset.index(name) == index
    assert dataset[-1] == dataset[len(dataset) - 1]
    with pytest.raises(KeyError):
        dataset.index("cat")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_it(folder, method):
    dataset = stallscope.PackedImageFolder(packed(folder), transform=as_array)
    # Opened before it is forked.
    expected = everything(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    assert same([(picture.numpy(), target) for picture, target in loader], expected)


def test_threads_read_it(folder):
    dataset = stallscope.PackedImageFolder(packed(folder), transform=as_array)
    expected = everything(stallscope.PackedImageFolder(dataset.root, transform=as_array))
    got = {}
    threads = [threading.Thread(target=lambda at=at: got.update({at: everything(dataset)})) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8 and all(same(one, expected) for one in got.values())


def test_pickled_it_is_its_path_and_another_state_is_refused(folder, tmp_path, monkeypatch):
    pack = packed(folder)
    monkeypatch.chdir(tmp_path)
    dataset = stallscope.PackedImageFolder("set.pack", transform=as_array)
    data = pickle.dumps(dataset)
    assert len(data) < 2000
    # Wherever it is opened.
    monkeypatch.chdir("/")
    assert same(everything(pickle.loads(data)), everything(dataset))
    (folder / "dog" / "new.png").write_bytes((folder / "cat" / "10.png").read_bytes())
    packed(folder)
    with pytest.raises(stallscope.PackError, match="is in another state"):
        pickle.loads(data)
    # Who has it open reads on what it was.
    assert len(dataset) == len(PICTURES) and len(stallscope.PackedImageFolder(pack)) == len(PICTURES) + 1
    everything(dataset)


def test_damaged_bytes_are_never_a_sample(folder):
    pack = packed(folder)
    damage(pack, "dog/x.tiff")
    dataset = stallscope.PackedImageFolder(pack, transform=as_array)
    bad = [name for name, _ in PICTURES].index("dog/x.tiff")
    with pytest.raises(stallscope.PackError, match="record dog/x.tiff does not hold what was packed"):
        dataset[bad]
    assert len([dataset[index] for index in range(len(dataset)) if index != bad]) == len(PICTURES) - 1
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, sampler=[bad])
    with pytest.raises(stallscope.PackError, match="does not hold what was packed"):
        list(loader)


def test_a_snapshot_that_lags_behind_is_noticed(folder):
    pack = packed(folder)
    shutil.copy(f"{pack}/snapshot", f"{pack}.old")
    (folder / "dog" / "new.png").write_bytes(b"new")
    packed(folder)
    shutil.copy(f"{pack}.old", f"{pack}/snapshot")
    with pytest.warns(RuntimeWarning, match="has 1 chunks that are not in its snapshot"):
        dataset = stallscope.PackedDataset(pack)
    assert len(dataset) == len(PICTURES) + len(pack_sets.OTHERS)
    first = min(name for name in os.listdir(pack) if name.endswith(".chunk"))
    os.remove(f"{pack}/{first}")
    with pytest.raises(stallscope.PackError, match="1 of its 1 chunks are not there"):
        stallscope.PackedDataset(pack)
    with pytest.raises(stallscope.PackError, match="is no folder"):
        stallscope.PackedDataset(folder / "nothing")
    with pytest.raises(stallscope.PackError, match="is no pack"):
        stallscope.PackedDataset(folder)


def test_a_pack_without_pictures_of_a_class_is_refused(tmp_path):
    for name in ("one/a.png", "two/b.txt"):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    with pytest.raises(stallscope.PackError, match="no picture of these classes: two"):
        stallscope.PackedImageFolder(packed(tmp_path / "set"))


def epochs(dataset, workers, count=3):
    torch.manual_seed(5)
    loader = stallscope.DataLoader(dataset, batch_size=None, shuffle=True, num_workers=workers, cache="16MiB")
    got = [[(picture.numpy(), target) for picture, target in loader] for _ in range(count)]
    figures = loader.cache_figures()
    del loader
    return got, figures


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_keeps_its_pictures(folder, workers, recwarn):
    dataset = stallscope.PackedImageFolder(packed(folder), transform=random_crop)
    torch.manual_seed(5)
    uncached = stallscope.DataLoader(dataset, batch_size=None, shuffle=True, num_workers=workers)
    expected = [[(picture.numpy(), target) for picture, target in uncached] for _ in range(3)]
    got, figures = epochs(dataset, workers)
    assert [str(one.message) for one in recwarn if "stallscope" in str(one.message)] == []
    assert all(same(one, other) for one, other in zip(got, expected))
    assert figures["kept"] == "encoded" and figures["kept_samples"] == len(PICTURES)
    assert figures["hits"] == 2 * len(PICTURES) and figures["misses"] == len(PICTURES)


class Relabelled(stallscope.PackedImageFolder):
    """But for one picture, which nobody looks at on trial."""

    def __getitem__(self, index):
        picture, target = super().__getitem__(index)
        return picture, 100 if index == 5 else target


class Wrapping(torch.utils.data.Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        picture, target = self.inner[index]
        return picture, 100 if index == 5 else target

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


@pytest.mark.parametrize("kind", [Relabelled, lambda *given, **more: Wrapping(stallscope.PackedImageFolder(*given, **more))])
def test_no_cache_goes_around_samples_that_are_changed(folder, kind, monkeypatch):
    # As with larger data sets, where few samples are looked at.
    monkeypatch.setattr(split_parts, "_PROBES", 3)
    dataset = kind(packed(folder), transform=random_crop)
    loader = stallscope.DataLoader(torch.utils.data.Subset(dataset, range(len(dataset))), batch_size=None, cache="16MiB")
    with pytest.warns(RuntimeWarning, match=r"goes on without its cache: sample 0 opens no file through Python's open\(\), and it has no fetch\(\) and decode\(\) of its own"):
        assert [target for _, target in loader][5] == 100


@pytest.mark.parametrize("name", ["find_classes", "make_dataset"])
def test_classes_of_ones_own_are_refused(folder, name):
    kind = type("Coarse", (stallscope.PackedImageFolder,), {name: lambda self, *given: None})
    with pytest.raises(TypeError, match=rf"Coarse.{name}\(\) would not be called"):
        kind(packed(folder))


def test_two_packs_and_two_states_of_one_share_nothing(folder, tmp_path):
    other = fill(tmp_path / "other", seed=2)
    one, two = (stallscope.PackedImageFolder(packed(one), transform=as_array) for one in (folder, other))
    kept, _ = epochs(one, 0)
    same_again, figures = epochs(stallscope.PackedImageFolder(one.root, transform=as_array), 0, 1)
    assert figures["misses"] == 0 and same(same_again[0], kept[0]), "one pack is one data set"
    got, figures = epochs(two, 0, 1)
    assert figures["hits"] == 0 and not same(got[0], kept[0])
    # The middle of the three that are looked at stays as it is; another file of the class is another picture now.
    shutil.copy(folder / "cat" / "10.png", folder / "cat" / "deep" / "0.png")
    packed(folder)
    got, figures = epochs(stallscope.PackedImageFolder(one.root, transform=as_array), 0, 1)
    assert figures["hits"] == 0 and not same(got[0], kept[0])


def test_bytes_are_cached_too(folder):
    dataset = stallscope.PackedDataset(packed(folder))
    loader = stallscope.DataLoader(dataset, batch_size=None, cache="16MiB")
    expected = everything(dataset)
    assert [list(loader) for _ in range(2)] == [expected] * 2
    assert loader.cache_figures()["hits"] == len(dataset)


@pytest.mark.parametrize("module", ["errors", "dataset", "images", "in_chunks", "pictures"])
def test_the_examples_are_true(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("en/hello.txt", "hello"), ("fr/bonjour.txt", "bonjour")):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for name in ("cat/1.png", "cat/2.png", "dog/3.png"):
        path = tmp_path / "animals" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    packed("texts")
    packed("animals")
    failed, tried = doctest.testmod(importlib.import_module(f"stallscope.data.pack.{module}"))
    assert tried and not failed


def test_labels_that_came_in_tar_files_are_classes(folder, tmp_path):
    members = []
    for number, (name, _) in enumerate(PICTURES[:5]):
        data = (folder / name).read_bytes()
        members += [(f"{number:03}.{name.rsplit('.', 1)[1]}", data)]
        if number != 3:
            members += [(f"{number:03}.cls", str(number * 2).encode()), (f"{number:03}.txt", b"text")]
    with tarfile.open(tmp_path / "shard.tar", "w") as shard:
        for name, data in members:
            described = tarfile.TarInfo(name)
            described.size = len(data)
            shard.addfile(described, io.BytesIO(data))
    packed(tmp_path / "shard.tar")
    pictures = stallscope.PackedImageFolder(f"{tmp_path}/shard.tar.pack", transform=as_array)
    assert pictures.targets == [0, 2, 4, 8] and pictures.classes == [str(label) for label in range(9)]
    assert pictures.class_to_idx["8"] == 8
    for at, number in enumerate((0, 1, 2, 4)):
        with Image.open(folder / PICTURES[number][0]) as picture:
            assert equal(pictures[at][0], as_array(picture.convert("RGB"))) and pictures[at][1] == number * 2
    files = stallscope.PackedDataset(f"{tmp_path}/shard.tar.pack")
    assert [files.label(files.index(name)) for name in ("004.txt", "003.bmp")] == [8, None]
    # Their mix is what a Shuffle measures.
    assert sorted(pictures.shuffled(stallscope.Shuffle(30, "16MiB"), 2)) == [0, 1, 2, 3]
    again = pickle.loads(pickle.dumps(pictures))
    assert again.targets == pictures.targets
