//! A run as Parquet, a file a table: the tables and columns of csv, for data frames and SQL engines.
//!
//! Counts are signed 64-bit integers, so that differences of two columns may be negative; what does not fit is held at
//! the largest. Every column may be empty.

use crate::tables::{Column, Kind, TABLES, Table, Value};
use crate::{Error, Folder, Run};
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Rows of a row group, which is held in memory until it is written.
const GROUP_ROWS: usize = 1 << 16;

/// Writes every table into `folder`; files of an earlier report there are replaced. Gives the files.
///
/// # Errors
/// The folder cannot be written to, or a recording can no longer be read.
pub fn write(run: &Run, folder: &Folder) -> Result<Vec<PathBuf>, Error> {
    TABLES
        .iter()
        .map(|table| {
            let name = format!("{}.parquet", table.name);
            folder.replace(name.as_ref(), |out| write_table(table, run, out))?;
            Ok(folder.path().join(name))
        })
        .collect()
}

fn write_table(table: &Table, run: &Run, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    let failed = |error| Error::Output(as_io(error));
    let columns = table.columns();
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(format!("stallscope {}", env!("CARGO_PKG_VERSION")))
        .build();
    let schema = schema(table, &columns).map_err(failed)?;
    let mut writer = SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(failed)?;
    let mut group = Group::new(&columns);
    table.each_row(run, |row| {
        group.add(row);
        if group.rows == GROUP_ROWS { group.write(&mut writer).map_err(failed) } else { Ok(()) }
    })?;
    if group.rows > 0 {
        group.write(&mut writer).map_err(failed)?;
    }
    writer.close().map(drop).map_err(failed)
}

/// The disk's own reason where there is one.
fn as_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(cause) => *cause,
            Err(cause) => io::Error::other(cause),
        },
        other => io::Error::other(other),
    }
}

fn schema(table: &Table, columns: &[Column]) -> Result<Arc<Type>, ParquetError> {
    let fields = columns.iter().map(|column| {
        let (physical, logical) = match column.kind {
            Kind::Count | Kind::Code => (Physical::INT64, None),
            Kind::Real => (Physical::DOUBLE, None),
            Kind::Flag => (Physical::BOOLEAN, None),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let field = Type::primitive_type_builder(column.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical);
        Ok(Arc::new(field.build()?))
    });
    let fields = fields.collect::<Result<_, ParquetError>>()?;
    Ok(Arc::new(Type::group_type_builder(table.name).with_fields(fields).build()?))
}

/// Rows that wait to be written, by column.
struct Group {
    rows: usize,
    columns: Vec<Cells>,
}

/// The cells of a column: those that are not empty, and for every row whether its cell is empty (0) or not (1).
struct Cells {
    values: Values,
    levels: Vec<i16>,
}

enum Values {
    Integers(Vec<i64>),
    Reals(Vec<f64>),
    Flags(Vec<bool>),
    Texts(Vec<ByteArray>),
}

impl Group {
    fn new(columns: &[Column]) -> Group {
        let cells = |column: &Column| Cells {
            values: match column.kind {
                Kind::Count | Kind::Code => Values::Integers(Vec::new()),
                Kind::Real => Values::Reals(Vec::new()),
                Kind::Flag => Values::Flags(Vec::new()),
                Kind::Text => Values::Texts(Vec::new()),
            },
            levels: Vec::new(),
        };
        Group { rows: 0, columns: columns.iter().map(cells).collect() }
    }

    fn add(&mut self, row: &[Value<'_>]) {
        self.rows += 1;
        let cells = row.iter().map(Some).chain(std::iter::repeat(None));
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            let filled = match (&mut column.values, cell) {
                (Values::Integers(values), Some(Value::Count(count))) => {
                    values.push(i64::try_from(*count).unwrap_or(i64::MAX));
                    true
                }
                (Values::Integers(values), Some(Value::Code(code))) => {
                    values.push(*code);
                    true
                }
                (Values::Reals(values), Some(Value::Real(number))) => {
                    values.push(*number);
                    true
                }
                (Values::Flags(values), Some(Value::Flag(flag))) => {
                    values.push(*flag);
                    true
                }
                (Values::Texts(values), Some(Value::Text(text))) => {
                    values.push(ByteArray::from(text.as_ref()));
                    true
                }
                _ => false,
            };
            column.levels.push(filled.into());
        }
    }

    /// Writes the rows as a row group and forgets them.
    fn write<W: Write + Send>(&mut self, writer: &mut SerializedFileWriter<W>) -> Result<(), ParquetError> {
        let mut group = writer.next_row_group()?;
        for column in &mut self.columns {
            let Some(into) = group.next_column()? else { break };
            let levels = std::mem::take(&mut column.levels);
            match &mut column.values {
                Values::Integers(values) => write_column::<Int64Type>(into, values, &levels)?,
                Values::Reals(values) => write_column::<DoubleType>(into, values, &levels)?,
                Values::Flags(values) => write_column::<BoolType>(into, values, &levels)?,
                Values::Texts(values) => write_column::<ByteArrayType>(into, values, &levels)?,
            }
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }
}

fn write_column<T: DataType>(
    mut into: SerializedColumnWriter<'_>,
    values: &mut Vec<T::T>,
    levels: &[i16],
) -> Result<(), ParquetError> {
    into.typed::<T>().write_batch(values, Some(levels), None)?;
    values.clear();
    into.close()
}
