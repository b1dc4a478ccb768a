//! A recording may come from anywhere. What is demanded of its file before anything in it is read, and how much reading it
//! may take.
//!
//! SQLite takes a file's word for what its tables are: a column may be computed by any function, a table may be a program.
//! So only tables whose columns are stored, and indexes of such columns, are read. And pages that lead to each other in
//! circles look like more rows than the file has bytes, and so do rows that share the pages of one long value. So what all questions
//! together take of SQLite's time and memory is bounded by the file's size, and what is read of all tables together is no more than fits into it.

use crate::spending::{LOOK_EVERY, Spending};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};
use serde::de::DeserializeOwned;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Longest text or blob: a summary of a thousand ranks has some megabytes.
const MAX_SUMMARY_BYTES: i32 = 32 << 20;
/// The same of all other tables, whose rows have some kilobytes, and of their definitions, which have some hundreds: what SQLite makes of a
/// definition takes time by the square of its length.
const MAX_VALUE_BYTES: i32 = 4 << 20;
const MAX_DEFINITION_BYTES: i32 = 8 << 10;
/// Values in one text of lists: ten thousand ranks have a third as many. An empty text in a list takes 3 bytes of a file, 24
/// of memory, and as much again while the list grows.
const MOST_VALUES: usize = 3 << 20;
/// Rows that are taken at once: no recorder lets a table grow to as many. Each may take a hundred bytes of memory.
pub(crate) const MOST_ROWS: usize = 1 << 20;
/// In instructions of SQLite's virtual machine: a question on an empty file takes fewer than the first; and each row that fits into
/// a file takes fewer than the second a byte in all questions of a report: 10 to 20 columns of it make some 40 instructions, of at
/// least 40 bytes, a sort reads each twice, and no report asks for a table more than twice.
const FREE: u64 = 5_000_000;
const EACH_BYTE: u64 = 4;
/// A file may be asked many small questions: each has at least [`FREE`], as long as all together take no more than so much beyond
/// the rest.
const SPARE: u64 = 16 * FREE;
/// Memory that SQLite may take for one question, to sort what it found: so much for any file, and so much for each of its bytes.
const FREE_MEMORY: u64 = 64 << 20;
const MEMORY_EACH_BYTE: u64 = 4;
/// Who goes on asking, as a terminal does, has all of it again after so long.
const ANEW_AFTER: Duration = Duration::from_secs(10);
/// Of a file that is small, or grows while it is read.
const FREE_BYTES: u64 = 1 << 20;
/// A row takes at least so much in a file, and the fourth part of its memory: each has a time of 6 bytes or more, and a byte
/// for each column and each value that is not 0 or 1.
const ROW_BYTES: u64 = 24;
const MEMORY_OF_A_BYTE: u64 = 4;

/// No code of a file's own, and no trust in its cells.
pub(crate) fn distrust(connection: &Connection) -> rusqlite::Result<()> {
    for (setting, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
    ] {
        connection.set_db_config(setting, on)?;
    }
    connection.pragma_update(None, "cell_size_check", true)
}

/// Has the summary be read, which may be longer than all else.
pub(crate) fn of_summary<T>(connection: &Connection, read: impl FnOnce() -> T) -> rusqlite::Result<T> {
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_SUMMARY_BYTES)?;
    let done = read();
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
    Ok(done)
}

/// Reads a JSON text with no more values in it than [`MOST_VALUES`], in however many lists.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    if values_in(text) > MOST_VALUES {
        return Err(format!("it has more than {MOST_VALUES} values"));
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// At least as many as there are: one after each comma, and one in each list and object.
fn values_in(text: &str) -> usize {
    let (mut values, mut quoted, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b',' | b'[' | b'{' if !quoted => values += 1,
            _ => {}
        }
    }
    values
}

/// How much of a file is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// As much as it has.
    Whole,
    /// A row here and there, however large it is.
    Head,
}

impl Extent {
    /// How many of a file's bytes are to be read.
    fn of(self, bytes: u64) -> u64 {
        if self == Extent::Head { 0 } else { bytes }
    }
}

/// How much may still be asked of a file.
#[derive(Debug)]
pub(crate) struct Budget {
    spending: Arc<Spending>,
    spare: Cell<u64>,
    filled: Cell<Instant>,
    extent: Extent,
    /// Bytes of each table that a question has read, at most so far. No part of a file belongs to two of them.
    read_bytes: RefCell<HashMap<String, u64>>,
}

/// What one question may read.
#[derive(Debug)]
pub(crate) struct Allowance {
    pub(crate) read_bytes: u64,
    limit_bytes: u64,
}

impl Allowance {
    /// Counts a row of which a `T` is made; `false` where that is more than the file can hold.
    pub(crate) fn takes<T>(&mut self, row: &Row<'_>) -> rusqlite::Result<bool> {
        let mut texts = 0;
        for column in 0..row.as_ref().column_count() {
            if let ValueRef::Text(bytes) | ValueRef::Blob(bytes) = row.get_ref(column)? {
                texts += bytes.len() as u64;
            }
        }
        let least = ROW_BYTES.max(size_of::<T>() as u64 / MEMORY_OF_A_BYTE);
        self.read_bytes = self.read_bytes.saturating_add(texts.max(least));
        Ok(self.read_bytes <= self.limit_bytes)
    }
}

impl Budget {
    /// Bounds what `connection`, to a file of so many bytes, may use.
    pub(crate) fn bound(connection: &mut Connection, bytes: u64, extent: Extent) -> rusqlite::Result<Budget> {
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
        connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, MAX_DEFINITION_BYTES)?;
        // Memory, not a folder of the system's that would fill up.
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        let spending = Arc::new(Spending::default());
        let filled = Cell::new(Instant::now());
        let (spare, read_bytes) = (Cell::new(0), RefCell::default());
        let budget = Budget { spending: spending.clone(), spare, filled, extent, read_bytes };
        budget.fill(bytes);
        budget.begin(bytes);
        connection.progress_handler(LOOK_EVERY, Some(move || !spending.pay()))?;
        Ok(budget)
    }

    /// A new question begins, to a file that has so many bytes by now.
    pub(crate) fn ask(&self, bytes: u64) {
        if self.filled.get().elapsed() > ANEW_AFTER {
            self.fill(bytes);
        } else {
            let left = &self.spending.left;
            let more = FREE.saturating_sub(left.load(Relaxed)).min(self.spare.get());
            left.fetch_add(more, Relaxed);
            self.spare.set(self.spare.get() - more);
        }
        self.begin(bytes);
    }

    /// What is spent from now on is the file's.
    fn begin(&self, bytes: u64) {
        self.spending
            .begin(FREE_MEMORY.saturating_add(self.extent.of(bytes).saturating_mul(MEMORY_EACH_BYTE)));
    }

    fn fill(&self, bytes: u64) {
        let bytes = self.extent.of(bytes);
        self.spending.left.store(FREE.saturating_add(bytes.saturating_mul(EACH_BYTE)), Relaxed);
        self.spare.set(SPARE);
        self.filled.set(Instant::now());
        self.read_bytes.borrow_mut().clear();
    }

    /// What a question to a file of so many bytes may read, of which earlier parts of it have read `read_bytes`.
    pub(crate) fn allowance(&self, sql: &str, bytes: u64, read_bytes: u64) -> Allowance {
        let read = self.read_bytes.borrow();
        let others = read.iter().filter(|(table, _)| *table != table_of(sql)).map(|(_, bytes)| bytes);
        let limit_bytes = bytes.saturating_add(FREE_BYTES).saturating_sub(others.sum());
        Allowance { read_bytes, limit_bytes }
    }

    /// Whether what a question has read is within its allowance.
    pub(crate) fn has_read(&self, sql: &str, allowance: Allowance) -> bool {
        let mut read = self.read_bytes.borrow_mut();
        let table = read.entry(table_of(sql).to_owned()).or_default();
        *table = (*table).max(allowance.read_bytes.min(allowance.limit_bytes));
        allowance.read_bytes <= allowance.limit_bytes
    }
}

/// Ours have one each.
fn table_of(sql: &str) -> &str {
    sql.split_once("FROM ").map_or(sql, |(_, rest)| rest.split_whitespace().next().unwrap_or(rest))
}

/// What no recorder has made of a table or index that is in the file; `None` where all is plain.
pub(crate) fn suspicious(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let strange = "SELECT type || ' ' || name FROM sqlite_schema
        WHERE type NOT IN ('table', 'index') OR rootpage IS NULL OR rootpage < 2 LIMIT 1";
    if let Some(found) = connection.query_row(strange, [], |row| row.get::<_, String>(0)).optional()? {
        return Ok(Some(format!("it has the {found}")));
    }
    // 2 and 3: a column that is computed, 1: one of a program's.
    let computed = "SELECT s.name || '.' || c.name FROM sqlite_schema s, pragma_table_xinfo(s.name) c
        WHERE s.type = 'table' AND c.hidden <> 0 LIMIT 1";
    if let Some(found) = connection.query_row(computed, [], |row| row.get::<_, String>(0)).optional()? {
        return Ok(Some(format!("the column {found} is computed")));
    }
    // -2: an expression. A partial index has one in its condition.
    let indexed =
        "SELECT i.name FROM sqlite_schema s, pragma_index_list(s.name) i, pragma_index_xinfo(i.name) c
        WHERE s.type = 'table' AND (i.partial <> 0 OR c.cid < -1) LIMIT 1";
    let found = connection.query_row(indexed, [], |row| row.get::<_, String>(0)).optional()?;
    Ok(found.map(|name| format!("the index {name} is computed")))
}
