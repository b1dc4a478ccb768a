"""A pack of a table gives what pyarrow reads from the same file: pictures and labels, in the order of rows."""

import io
import itertools
import json
import random
import subprocess

import pytest
from collector import PACKAGE  # noqa: F401  where the package is

pytest.importorskip("torch")
pytest.importorskip("PIL")
pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

import numpy  # noqa: E402
from pack_sets import as_array, packed, program  # noqa: E402
from PIL import Image  # noqa: E402

import stallscope  # noqa: E402

NAMES = ["cat", "dog", "été"]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def described(table, **features):
    """With what Hugging Face writes beside the columns."""
    info = {"info": {"features": {"image": {"_type": "Image"}, **features}}}
    return table.replace_schema_metadata({"huggingface": json.dumps(info)})


def class_labels(names=NAMES):
    return {"names": names, "_type": "ClassLabel"}


def picture(draw, number):
    mode, kind = [("RGB", "JPEG"), ("L", "PNG"), ("RGB", "PNG"), ("RGBA", "PNG")][number % 4]
    pixels = numpy.frombuffer(draw.randbytes(16 * 12 * 3), "u1").reshape(12, 16, 3)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def pictures(count, seed=1):
    draw = random.Random(seed)
    images = [{"bytes": picture(draw, number), "path": f"{number}.png"} for number in range(count)]
    labels = [draw.randrange(len(NAMES)) for _ in range(count)]
    columns = {"image": pa.array(images, IMAGE), "id": pa.array(range(count)), "label": pa.array(labels, pa.int64())}
    return described(pa.table(columns), label=class_labels())


def stream(table, path, rows=7, kind=pa.ipc.new_stream):
    path.parent.mkdir(exist_ok=True)
    with kind(str(path), table.schema) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)


def is_the_table(dataset, table):
    """Whether each sample is the picture and the label of the row of its number."""
    rows = table.to_pylist()
    assert len(dataset) == len(rows) and dataset.targets == [row["label"] for row in rows]
    for number, row in enumerate(rows):
        ours, target = dataset[number]
        with Image.open(io.BytesIO(row["image"]["bytes"])) as theirs:
            assert numpy.array_equal(ours, as_array(theirs.convert("RGB"))) and target == row["label"]


def test_parquet_as_the_hub_has_it_gives_pictures_and_labels_of_the_rows(tmp_path):
    shards = [pictures(23, seed) for seed in range(3)]
    (tmp_path / "data").mkdir()
    for number, shard in enumerate(shards):
        path = tmp_path / f"data/train-{number:05}-of-00003.parquet"
        pq.write_table(shard, path, row_group_size=5, compression=["snappy", "zstd", "none"][number])
    dataset = stallscope.PackedImageFolder(packed(tmp_path / "data"), transform=as_array)
    is_the_table(dataset, pa.concat_tables(shards))
    assert dataset.classes == ["0", "1", "2"]
    tensors = stallscope.PackedImages(f"{tmp_path}/data.pack", size=8, crop="center")
    assert len(tensors) == len(dataset) and tensors[3][1] == dataset.targets[3]


def test_what_save_to_disk_wrote_gives_pictures_and_labels_of_the_rows(tmp_path):
    shards = [pictures(20, seed) for seed in range(2)]
    for number, shard in enumerate(shards):
        stream(shard, tmp_path / f"saved/data-{number:05}-of-00002.arrow")
    # Beside them what load_from_disk goes by, and what `map` kept.
    files = [{"filename": f"data-{number:05}-of-00002.arrow"} for number in range(2)]
    (tmp_path / "saved/state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))
    (tmp_path / "saved/dataset_info.json").write_text("{}")
    stream(shards[0], tmp_path / "saved/cache-1f2e3d.arrow")
    is_the_table(stallscope.PackedImageFolder(packed(tmp_path / "saved"), transform=as_array), pa.concat_tables(shards))


@pytest.mark.parametrize("kind", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_files_of_the_cache_give_the_rows(tmp_path, kind):
    table = pictures(15)
    # Labels in a dictionary, and columns of all kinds before, between and behind.
    before = pa.array([[1, 2], None, [3]] * 5, pa.list_(pa.int8()))
    odd = {
        "list": before,
        "fixed": pa.array([[1, 2]] * 15, pa.list_(pa.int16(), 2)),
        "map": pa.array([[("a", 1)]] * 15, pa.map_(pa.string(), pa.int32())),
        "nothing": pa.nulls(15),
        "view": pa.array(["a view of some length"] * 15, pa.string_view()),
        "truth": pa.array([True, False, None] * 5),
        "time": pa.array([1] * 15, pa.timestamp("ns")),
        "image": table["image"].combine_chunks(),
        "words": pa.array(["x", "y", "z"] * 5).dictionary_encode(),
        "label": table["label"].combine_chunks().cast(pa.uint8()),
    }
    table = described(pa.table(odd), label=class_labels())
    stream(table, tmp_path / "cifar10-train.arrow", 4, kind)
    is_the_table(stallscope.PackedImageFolder(packed(tmp_path / "cifar10-train.arrow"), transform=as_array), table)


def test_every_way_to_write_parquet_gives_the_rows(tmp_path):
    draw = random.Random(2)
    count = 400
    values = [None if draw.random() < 0.1 else draw.randbytes(draw.choice([0, 1, 30, 30, 700])) for _ in range(count)]
    values[::9] = [values[1] or b"again"] * len(values[::9])
    labels = [None if draw.random() < 0.1 else draw.choice([0, 3, 70_000, 2**32 - 2]) for _ in range(count)]
    ways = itertools.product(
        ["none", "snappy", "zstd", "lz4", "gzip"], ["1.0", "2.0"], [True, "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
    )
    kinds = [pa.binary(), pa.large_binary(), pa.struct([("bytes", pa.binary())])]
    for number, (codec, version, encoding) in enumerate(ways):
        kind = kinds[number % 3]
        shown = values if number % 3 < 2 else [None if value is None else {"bytes": value} for value in values]
        label_kind = [pa.int64(), pa.uint32(), pa.uint64()][number % 3]
        table = pa.table({"label": pa.array(labels, label_kind), "data": pa.array(shown, kind)})
        path = tmp_path / f"way-{number}.parquet"
        options = {"use_dictionary": True}
        if encoding is not True:
            of_labels = ["PLAIN", "DELTA_BINARY_PACKED"][number % 2]
            leaf = "data.bytes" if number % 3 == 2 else "data"
            options = {"use_dictionary": False, "column_encoding": {leaf: encoding, "label": of_labels}}
        pq.write_table(
            table, path, compression=codec, data_page_version=version, row_group_size=draw.choice([90, 1000]),
            data_page_size=draw.choice([500, 2**20]), write_page_checksum=number % 4 == 0, **options,
        )  # fmt: skip
        done = subprocess.run([program(), "pack", path, "-o", f"{path}.pack"], capture_output=True, text=True)
        # Nulls have a sentence.
        assert done.returncode == 1 and "their data" in done.stderr, (number, done.stderr)
        pack = stallscope.PackedDataset(f"{path}.pack")
        expected = [(row, value) for row, value in enumerate(values) if value is not None]
        names = [f"way-{number}/{row:010}" for row, _ in expected]
        assert [pack.name(at) for at in range(len(pack))] == names, (number, codec, version, encoding)
        for at, (row, value) in enumerate(expected):
            assert (pack[at], pack.label(at)) == (value, labels[row]), (number, codec, version, encoding, row)


def test_texts_and_their_labels_are_packed_and_compressed(tmp_path):
    rows = [(f"text {number} " * (number % 50), ["pos", "neg"][number % 2]) for number in range(500)]
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    pq.write_table(table, tmp_path / "imdb.parquet")
    words = [program(), "pack", tmp_path / "imdb.parquet", "-o", tmp_path / "imdb.pack", "--zstd"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and "compressed, which saves" in done.stdout, done.stderr
    pack = stallscope.PackedDataset(tmp_path / "imdb.pack")
    assert [pack[at].decode() for at in range(len(pack))] == [text for text, _ in rows]
    # The numbers of their order, as of folders.
    assert [pack.label(at) for at in range(len(pack))] == [int(label == "pos") for _, label in rows]


def test_two_columns_of_classes_are_named(tmp_path):
    table = pictures(6)
    table = described(
        table.append_column("coarse", pa.array([1, 0] * 3)), label=class_labels(), coarse=class_labels(["a", "b"])
    )
    pq.write_table(table, tmp_path / "cifar100.parquet")
    words = [program(), "pack", tmp_path / "cifar100.parquet", "-o", tmp_path / "c.pack"]
    refused = subprocess.run(words, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "has several columns of labels; name one by --label: it has image.bytes (bytes), " in refused.stderr
    assert subprocess.run([*words, "--label", "coarse"], check=False).returncode == 0
    assert stallscope.PackedImageFolder(tmp_path / "c.pack").targets == [1, 0] * 3


def test_what_is_not_expanded_here_names_the_way_out(tmp_path):
    table = pa.table({"text": ["a", "b"]})
    pq.write_table(table, tmp_path / "a.parquet", compression="brotli")
    stream_of = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(str(tmp_path / "b.arrow"), table.schema, options=stream_of) as writer:
        writer.write_table(table)
    for name, why in (("a.parquet", "compressed by brotli"), ("b.arrow", "batches are compressed")):
        words = [program(), "pack", tmp_path / name, "-o", tmp_path / "x.pack"]
        refused = subprocess.run(words, capture_output=True, text=True)
        assert refused.returncode == 1 and why in refused.stderr and "write it anew" in refused.stderr
        assert str(tmp_path / name) in refused.stderr
