"""What is read from a compressed pack is what is read from one that is not, whatever reads it."""

import subprocess
from pathlib import Path

import pytest
from collector import PACKAGE  # noqa: F401  where the package is

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("numpy")

import numpy  # noqa: E402
from pack_sets import program  # noqa: E402
from PIL import Image  # noqa: E402

import stallscope  # noqa: E402

FILES = 120


@pytest.fixture
def packs(tmp_path, monkeypatch):
    """A pack of texts and one of pictures with much beside their pixels, both compressed; and the texts' bytes."""
    # A pool of its own, which goes with its last loader.
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path / "run"))
    texts = []
    for number in range(FILES):
        path = tmp_path / "texts" / "abc"[number % 3] / f"{number:03}"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts.append((str(path.relative_to(tmp_path / "texts")), f"{number:03}".encode() * (10 + 300 * number)))
        path.write_bytes(texts[-1][1])
    for number in range(24):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = numpy.full((40, 50, 3), number * 10, "u1")
        Image.fromarray(pixels).save(path, comment=b"a comment of many words; " * 400)
    for name in ("texts", "pictures"):
        words = [program(), "pack", tmp_path / name, "-o", tmp_path / f"{name}.pack", "--zstd"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0 and " compressed, which saves " in done.stdout, done.stdout + done.stderr
    return tmp_path / "texts.pack", tmp_path / "pictures.pack", dict(texts)


@pytest.mark.parametrize(("workers", "method"), [(0, "fork"), (2, "fork"), (2, "spawn")])
@pytest.mark.parametrize("how", ["shuffle", "chunks", "cache", "window"])
def test_loaders_give_what_was_packed(packs, how, workers, method):
    dataset = stallscope.PackedDataset(packs[0])
    more = {
        "shuffle": {"shuffle": True},
        "chunks": {"sampler": dataset.in_chunk_order()},
        "cache": {"shuffle": True, "cache": "32MiB"},
        "window": {"shuffle": stallscope.Shuffle(max_design_effect=1.5, memory="40MiB")},
    }[how]
    context = {"multiprocessing_context": method} if workers else {}
    loader = stallscope.DataLoader(dataset, batch_size=7, num_workers=workers, collate_fn=list, **context, **more)
    for _ in range(2):
        read = sorted(data for batch in loader for data in batch)
        assert read == sorted(packs[2].values())


def test_names_and_bytes_are_those_of_the_folder(packs):
    dataset = stallscope.PackedDataset(packs[0])
    assert {dataset.name(index): dataset[index] for index in range(FILES)} == packs[2]


def test_pictures_are_those_of_the_folder(packs, tmp_path):
    plain = tmp_path / "plain.pack"
    subprocess.run([program(), "pack", tmp_path / "pictures", "-o", plain], check=True, capture_output=True)
    ours, theirs = (stallscope.PackedImages(pack, size=(24, 24), crop="center") for pack in (packs[1], plain))
    assert len(ours) == len(theirs) == 24
    for index in range(24):
        (picture, target), (other, label) = ours[index], theirs[index]
        assert torch.equal(picture, other) and target == label
    loader = torch.utils.data.DataLoader(ours, batch_size=8, num_workers=2)
    assert sum(len(pictures) for pictures, _ in loader) == 24
    folder = stallscope.PackedImageFolder(packs[1])
    assert [Path(path).name for path, _ in folder.samples][:2] == ["00.jpg", "02.jpg"] and folder[0][0].size == (50, 40)


def test_a_damaged_frame_is_never_a_sample(packs):
    dataset = stallscope.PackedDataset(packs[0])
    chunk = next(iter(Path(packs[0]).glob("*.chunk")))
    content = bytearray(chunk.read_bytes())
    content[64 + 30] ^= 8
    chunk.write_bytes(content)
    failed = 0
    for index in range(len(dataset)):
        try:
            assert dataset[index] in packs[2].values()
        except stallscope.PackError as error:
            failed += 1
            assert "does not hold what was packed" in str(error)
    assert failed == 1
