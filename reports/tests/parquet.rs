//! What is exported as Parquet is what is exported as CSV, read back by this crate's reader and by pandas.

#[path = "support/python.rs"]
mod python;

use madeup::{Shape, record};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use stallscope_reports::tables::TABLES;
use stallscope_reports::{Run, csv, json, parquet as export};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A run as folders of CSV and of Parquet, and as JSON beside them.
fn exported(dir: &Path) -> Run {
    let run =
        Run::open(&[record(&dir.join("run.stall"), &Shape { ranks: 2, seconds: 90, ..Shape::default() })]);
    let run = run.unwrap();
    csv::write(&run, &dir.join("csv")).unwrap();
    let files = export::write(&run, &dir.join("parquet")).unwrap();
    let names: Vec<PathBuf> =
        TABLES.iter().map(|table| dir.join("parquet").join(format!("{}.parquet", table.name))).collect();
    assert_eq!(files, names);
    json::write(&run, &mut File::create(dir.join("run.json")).unwrap()).unwrap();
    run
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
        let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        let schema = reader.metadata().file_metadata().schema();
        let names: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).collect();
        assert_eq!(names, headings, "{}", table.name);
        let parquet: Vec<Vec<String>> = reader
            .get_row_iter(None)
            .unwrap()
            .map(|row| row.unwrap().get_column_iter().map(|(_, field)| as_csv(field)).collect())
            .collect();
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
    let said = python::run(&python, "read_tables.py", &[dir.path()]);
    assert_eq!(said.trim(), format!("{} tables, {steps} steps", TABLES.len()));
}
