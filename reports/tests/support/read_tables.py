"""Compares a run's Parquet files with its CSV files and its JSON, as pandas reads them. Usage: read_tables.py FOLDER"""

import json
import sys
from pathlib import Path

import pandas
import pyarrow.parquet

folder = Path(sys.argv[1])
tables = {}
for path in sorted((folder / "parquet").glob("*.parquet")):
    name = path.stem
    # With a type that can hold "nothing here", so that no count becomes a float.
    parquet = pandas.read_parquet(path, dtype_backend="numpy_nullable")
    csv = pandas.read_csv(folder / "csv" / f"{name}.csv", dtype=parquet.dtypes.to_dict(), keep_default_na=False, na_values=[""])
    # CSV does not tell an empty text from none.
    texts = parquet.select_dtypes("string").columns
    parquet[texts], csv[texts] = parquet[texts].fillna(""), csv[texts].fillna("")
    pandas.testing.assert_frame_equal(parquet, csv, obj=name)
    tables[name] = parquet

steps = tables["steps"]
causes = ["compute", "fetch", "prep", "starved", "transfer", "preempted", "snapshot", "persist", "peer", "unknown"]
wall_ns = steps["end_wall_ns"] - steps["start_wall_ns"]
assert (steps[[f"{cause}_ns" for cause in causes]].sum(axis=1) == wall_ns).all(), "causes add up to wall time"

summary = json.loads((folder / "run.json").read_text())
phases = tables["phases"]
of_job = phases[phases["rank"].isna()].reset_index(drop=True)
for row, phase in zip(of_job.to_dict("records"), summary["phases"], strict=True):
    for field in ["phase", "steps", "samples", "wall_ns", "step_p50_ns", "step_p95_ns", "step_max_ns"]:
        assert row[field] == phase[field], f"{field}: {row[field]} and {phase[field]}"
training = steps[steps["phase"] == "training"]
assert training["merged"].sum() == sum(
    phase["steps"] for rank in summary["ranks"] for phase in rank["phases"] if phase["phase"] == "training"
)

groups = pyarrow.parquet.ParquetFile(folder / "parquet" / "steps.parquet").metadata
assert groups.created_by.startswith("stallscope "), groups.created_by
print(f"{len(tables)} tables, {len(steps)} steps")
