"""Writes the tables that tests read, by pyarrow: make.py FOLDER. What their rows are, tests/tables.rs has as well."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

into = Path(sys.argv[1])

# As Hugging Face writes it.
FEATURES = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog", "été"], "_type": "ClassLabel"}}
METADATA = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def picture(row):
    return b"\xff\xd8\xff" + bytes([row]) * (50 + row)


def pictures(rows, missing=()):
    images = [None if row in missing else {"bytes": picture(row), "path": f"n{row}.JPEG"} for row in rows]
    return pa.table(
        {"image": pa.array(images, IMAGE), "label": pa.array([row % 3 for row in rows], pa.int64())}
    ).replace_schema_metadata(METADATA)


def texts(count):
    return [None if row % 7 == 3 else "" if row % 7 == 4 else f"row {row // 4} of a text" for row in range(count)]


def stream(table, path, rows, kind=pa.ipc.new_stream):
    with kind(str(path), table.schema) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)


for shard in range(2):
    name = f"train-{shard:05}-of-00002.parquet"
    pq.write_table(pictures(range(shard * 10, shard * 10 + 10)), into / name, row_group_size=4)

table = pa.table({"text": texts(60), "label": pa.array([row % 5 - 1 for row in range(60)], pa.int32())})
pq.write_table(
    table,
    into / "deltas.parquet",
    compression="zstd",
    data_page_version="2.0",
    use_dictionary=False,
    column_encoding={"text": "DELTA_BYTE_ARRAY", "label": "DELTA_BINARY_PACKED"},
)
pq.write_table(
    table,
    into / "lengths.parquet",
    compression="none",
    use_dictionary=False,
    column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY", "label": "PLAIN"},
)
pq.write_table(table, into / "dictionary.parquet", compression="snappy", data_page_version="2.0", use_dictionary=True)

saved = into / "saved"
saved.mkdir(exist_ok=True)
stream(pictures(range(12), missing=(5,)), saved / "data-00000-of-00001.arrow", 5)
(saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
(saved / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))

words = pa.array(["b", "a", None, "c", "a", "b"], pa.string()).dictionary_encode()
large = pa.table({"data": pa.array([b"row %d" % row for row in range(6)], pa.large_binary()), "label": words})
stream(large, into / "words.arrow", 4, pa.ipc.new_file)
