//! A run as a folder of CSV files, one table each: for spreadsheets, pandas and R.

use crate::tables::{TABLES, Table, Value};
use crate::{Error, Folder, Run};
use std::borrow::Cow;
use std::io::Write;
use std::path::PathBuf;

/// Writes every table into `folder`; files of an earlier report there are replaced. Gives the files.
///
/// # Errors
/// The folder cannot be written to, or a recording can no longer be read.
pub fn write(run: &Run, folder: &Folder) -> Result<Vec<PathBuf>, Error> {
    TABLES
        .iter()
        .map(|table| {
            let name = format!("{}.csv", table.name);
            folder.replace(name.as_ref(), |out| write_table(table, run, out))?;
            Ok(folder.path().join(name))
        })
        .collect()
}

/// One table with a heading, by RFC 4180 but with Unix line ends.
fn write_table(table: &Table, run: &Run, out: &mut dyn Write) -> Result<(), Error> {
    let mut csv = csv::Writer::from_writer(out);
    let failed = |error: csv::Error| Error::Output(error.into());
    csv.write_record(table.columns().iter().map(|column| column.name)).map_err(failed)?;
    table.each_row(run, |row| {
        for cell in row {
            csv.write_field(field(cell).as_bytes()).map_err(failed)?;
        }
        csv.write_record(None::<&[u8]>).map_err(failed)
    })?;
    Ok(csv.flush()?)
}

fn field<'a>(value: &'a Value<'_>) -> Cow<'a, str> {
    match value {
        Value::Empty => Cow::Borrowed(""),
        Value::Count(count) => count.to_string().into(),
        Value::Code(code) => code.to_string().into(),
        Value::Real(number) if number.is_finite() => number.to_string().into(),
        Value::Real(_) => Cow::Borrowed(""),
        Value::Flag(true) => Cow::Borrowed("true"),
        Value::Flag(false) => Cow::Borrowed("false"),
        Value::Text(text) => guarded(text),
    }
}

/// A text that a spreadsheet would take for a formula gets an apostrophe before it, by which it does not. Where the comma is the
/// decimal sign, cells are separated by semicolons, and one within a text begins a cell, too.
fn guarded(text: &str) -> Cow<'_, str> {
    if !text.split(';').any(is_formula) {
        return text.into();
    }
    let pieces = text.split(';').map(|piece| match is_formula(piece) {
        true => format!("'{piece}"),
        false => piece.to_owned(),
    });
    pieces.collect::<Vec<_>>().join(";").into()
}

fn is_formula(cell: &str) -> bool {
    let begins = cell.trim_start_matches(|char: char| char.is_whitespace() || char == '"');
    begins.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_formula_is_none() {
        for formula in ["=1+1", "+1", "-cmd", "@SUM(A1)", " =1", "＝1"] {
            assert_eq!(guarded(formula), format!("'{formula}"));
        }
        assert_eq!(guarded("x;=1+1"), "x;'=1+1");
        assert_eq!(guarded("-x; \"@y\";z"), "'-x;' \"@y\";z");
        for text in ["", "train", "a=1", "'x", "a;b", "a; b=1;"] {
            assert_eq!(guarded(text), text);
        }
    }
}
