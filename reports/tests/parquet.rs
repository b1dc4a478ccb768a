//! What is exported as Parquet is what is exported as CSV, read back by this crate's reader and by pandas.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

#[path = "support/python.rs"]
mod python;

use madeup::{Shape, record};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use proptest::prelude::*;
use stallscope_model::*;
use stallscope_reports::tables::{TABLES, Table, Value};
use stallscope_reports::{Folder, Run, csv, json, parquet as export};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A run as folders of CSV and of Parquet, and as JSON beside them.
fn exported(dir: &Path) -> Run {
    let run =
        Run::open(&[record(&dir.join("run.stall"), &Shape { ranks: 2, seconds: 90, ..Shape::default() })]);
    let run = run.unwrap();
    csv::write(&run, &Folder::make(&dir.join("csv")).unwrap()).unwrap();
    let files = export::write(&run, &Folder::make(&dir.join("parquet")).unwrap()).unwrap();
    let names: Vec<PathBuf> =
        TABLES.iter().map(|table| dir.join("parquet").join(format!("{}.parquet", table.name))).collect();
    assert_eq!(files, names);
    json::write(&run, &mut File::create(dir.join("run.json")).unwrap()).unwrap();
    run
}

/// The columns' names and the rows of a Parquet file.
fn read(path: &Path) -> (Vec<String>, Vec<Vec<Field>>) {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let schema = reader.metadata().file_metadata().schema();
    let names = schema.get_fields().iter().map(|field| field.name().to_owned()).collect();
    let rows = reader.get_row_iter(None).unwrap();
    let rows = rows.map(|row| row.unwrap().get_column_iter().map(|(_, field)| field.clone()).collect());
    (names, rows.collect())
}

fn as_csv(field: &Field) -> String {
    match field {
        Field::Null => String::new(),
        Field::Bool(flag) => flag.to_string(),
        Field::Long(number) => number.to_string(),
        Field::Double(share) => share.to_string(),
        Field::Str(text) => text.clone(),
        other => panic!("no column is {other:?}"),
    }
}

#[test]
fn parquet_says_what_csv_says() {
    let dir = tempfile::tempdir().unwrap();
    exported(dir.path());
    let mut filled = 0;
    for table in &TABLES {
        let path = dir.path().join("csv").join(format!("{}.csv", table.name));
        let mut reader = ::csv::Reader::from_path(path).unwrap();
        let headings: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        let csv: Vec<Vec<String>> =
            reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
        let path = dir.path().join("parquet").join(format!("{}.parquet", table.name));
        let (names, rows) = read(&path);
        assert_eq!(names, headings, "{}", table.name);
        let parquet: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(as_csv).collect()).collect();
        assert_eq!(parquet, csv, "{}", table.name);
        filled += usize::from(!csv.is_empty());
    }
    assert!(filled > 8, "only {filled} tables have rows");
}

#[test]
fn pandas_reads_parquet_as_it_reads_csv() {
    let dir = tempfile::tempdir().unwrap();
    let run = exported(dir.path());
    let Some(python) = python::with(&["pandas", "pyarrow"]) else { return };
    let mut steps = 0;
    run.each_step(|_| {
        steps += 1;
        Ok(())
    })
    .unwrap();
    let output = python::run(&python, "read_tables.py", &[dir.path()]);
    assert_eq!(output.trim(), format!("{} tables, {steps} steps", TABLES.len()));
}

fn as_field(value: &Value<'_>) -> Field {
    match value {
        Value::Empty => Field::Null,
        Value::Count(count) => Field::Long(i64::try_from(*count).unwrap_or(i64::MAX)),
        Value::Code(code) => Field::Long(*code),
        Value::Real(number) => Field::Double(*number),
        Value::Flag(flag) => Field::Bool(*flag),
        Value::Text(text) => Field::Str(text.to_string()),
    }
}

fn rows_of(table: &Table, run: &Run) -> Vec<Vec<Field>> {
    let mut rows = Vec::new();
    table
        .each_row(run, |row| {
            rows.push(row.iter().map(as_field).collect());
            Ok(())
        })
        .unwrap();
    rows
}

prop_compose! {
    fn any_run()(
        texts in prop::collection::vec(any::<String>(), 8),
        numbers in prop::collection::vec(any::<u64>(), 8),
        share in prop::num::f64::NORMAL,
        exit_code in any::<Option<i32>>(),
        ended_wall_ns in any::<Option<u64>>(),
        attached: bool,
        repeat in 0..4usize,
    ) -> Run {
        let text = |place: usize| texts[place].clone();
        let saved = CheckpointEvent {
            rank: numbers[0] as u32, start_ns: numbers[1], end_ns: numbers[2], saver: text(0),
            cause: Cause::Snapshot, background: attached, bytes: numbers[3],
        };
        let mut run = Run::of_summary(RunSummary {
            job: JobFacts {
                name: text(1), command: vec![text(2), text(3)], exit_code, ended_wall_ns, attached,
                started_wall_ns: numbers[4], ..JobFacts::default()
            },
            losses: vec![Loss { reason: text(4), count: numbers[5] }; repeat],
            files: vec![
                FileWait { path: text(5), mount: text(6), wait_ns: numbers[6], waits: numbers[7] };
                repeat
            ],
            diagnoses: vec![
                Diagnosis {
                    name: text(7), finding: text(0), evidence: text(1), advice: text(2), cause: None, share,
                    ..Diagnosis::default()
                };
                repeat
            ],
            ..RunSummary::default()
        });
        run.checkpoints = vec![saved; repeat];
        run
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_cell_comes_back_as_it_was(run in any_run()) {
        let dir = tempfile::tempdir().unwrap();
        for (table, path) in TABLES.iter().zip(export::write(&run, &Folder::make(dir.path()).unwrap()).unwrap()) {
            let (names, rows) = read(&path);
            let columns: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
            prop_assert_eq!(&names, &columns);
            prop_assert_eq!(rows, rows_of(table, &run));
        }
    }
}
