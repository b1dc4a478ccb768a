//! Recordings whose figures no recorder writes: every format comes to an end with a report or a sentence.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

mod support;

use proptest::prelude::*;
use serde_json::Value;
use stallscope_reports::{
    Folder, Run, csv, diff, html, json, markdown, openmetrics, parquet, perfetto, text,
};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use support::recordings::{Synthetic, two_hosts};

/// Two recordings of one job, as bytes.
fn whole() -> &'static [Vec<u8>; 2] {
    static WHOLE: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        two_hosts().map(|job| {
            let job = Synthetic { steps: 60, ..job };
            std::fs::read(job.record(folder.path(), "a.stall")).unwrap()
        })
    })
}

const COLUMNS: [(&str, &[&str]); 7] = [
    (
        "step",
        &[
            "rank",
            "loader",
            "idx",
            "start_ns",
            "end_ns",
            "fetch_ns",
            "peer_ns",
            "hidden_ns",
            "producer",
            "samples",
            "merged",
        ],
    ),
    (
        "rollup",
        &[
            "start_ns",
            "rank",
            "loader",
            "steps",
            "samples",
            "compute_ns",
            "fetch_ns",
            "step_p50_ns",
            "step_max_ns",
        ],
    ),
    ("step_detail", &["rank", "loader", "idx", "start_ns", "end_ns"]),
    ("checkpoint", &["rank", "start_ns", "end_ns", "bytes"]),
    ("worker_period", &["start_ns", "rank", "loader", "worker", "pid", "wall_ns", "fetch_ns", "idle_ns"]),
    (
        "audit",
        &["time_ns", "decision", "rank", "loader", "from_value", "to_value", "predicted", "measured_low"],
    ),
    ("clock_anchor", &["monotonic_ns", "boottime_ns", "wall_ns"]),
];

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(i64::MAX),
        Just(i64::MAX / 2),
        Just(-1),
        0..1_000_000_000_000i64,
        Just(i64::from(u32::MAX)),
        Just(i64::from(u16::MAX)),
    ]
}

/// A statement that changes a column, in some rows or in all.
fn change() -> impl Strategy<Value = String> {
    (any::<prop::sample::Index>(), any::<prop::sample::Index>(), number(), 1..4u8).prop_map(
        |(table, column, value, every)| {
            let (table, columns) = COLUMNS[table.index(COLUMNS.len())];
            let column = columns[column.index(columns.len())];
            format!("UPDATE OR REPLACE {table} SET {column} = {value} WHERE {column} % {every} = 0")
        },
    )
}

/// Replaces every `nth` number of a summary.
fn spoil(summary: &mut Value, nth: usize, with: u64, seen: &mut usize) {
    match summary {
        Value::Number(number) if number.is_u64() => {
            *seen += 1;
            if seen.is_multiple_of(nth) {
                *summary = with.into();
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| spoil(item, nth, with, seen)),
        Value::Object(object) => object.values_mut().for_each(|item| spoil(item, nth, with, seen)),
        _ => {}
    }
}

fn spoiled(path: &Path, bytes: &[u8], changes: &[String], summary: Option<(usize, u64)>) {
    std::fs::write(path, bytes).unwrap();
    let connection = rusqlite::Connection::open(path).unwrap();
    for change in changes {
        connection.execute(change, []).unwrap();
    }
    if let Some((nth, with)) = summary {
        let json: String = connection.query_row("SELECT json FROM summary", [], |row| row.get(0)).unwrap();
        let mut value: Value = serde_json::from_str(&json).unwrap();
        spoil(&mut value, nth, with, &mut 0);
        connection.execute("UPDATE summary SET json = ?", [value.to_string()]).unwrap();
    }
}

/// Every format of a run; what cannot be written has a sentence.
fn every_format(run: &Run, folder: &Path) {
    let mut out = Vec::new();
    let results = [
        markdown::write(run, &mut out),
        json::write(run, &mut out),
        html::write(run, &mut out),
        perfetto::write(run, &mut out),
        openmetrics::write(run, &mut out),
        Folder::make(&folder.join("csv")).and_then(|folder| csv::write(run, &folder)).map(drop),
        Folder::make(&folder.join("parquet")).and_then(|folder| parquet::write(run, &folder)).map(drop),
    ];
    for error in results.into_iter().filter_map(Result::err) {
        assert!(error.to_string().contains(".stall"), "{error}");
    }
    assert!(!text::report(run, &support::PLAIN).is_empty());
    if let Ok(same) = diff::compare(run, run) {
        assert!(!diff::text(&same, &support::PLAIN).is_empty() && !diff::json(&same, &[]).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn figures_beyond_reason_break_nothing(
        changes in prop::collection::vec(change(), 0..6),
        summary in prop::option::of((1..40usize, prop_oneof![Just(0), Just(u64::MAX), Just(u64::MAX / 2), 0..60_000u64])),
        both: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut paths: Vec<PathBuf> = Vec::new();
        for (name, bytes) in ["a.stall", "b.stall"].into_iter().zip(whole()) {
            let path = folder.path().join(name);
            spoiled(&path, bytes, &changes, summary);
            paths.push(path);
        }
        paths.truncate(if both { 2 } else { 1 });
        match Run::open(&paths) {
            Ok(mut run) => {
                every_format(&run, folder.path());
                run.redact();
                every_format(&run, folder.path());
            }
            Err(error) => prop_assert!(error.to_string().contains(".stall"), "{error}"),
        }
    }
}
