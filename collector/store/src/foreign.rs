//! A recording may come from anywhere. What is demanded of its file before anything in it is read, and how much reading it
//! may take.
//!
//! SQLite takes a file's word for what its tables are: a column may be computed by any function, a table may be a program.
//! So only tables whose columns are stored, and indexes of such columns, are read. And pages that lead to each other in
//! circles look like more rows than the file has bytes, so that the steps of each question are bounded by its size.

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OptionalExtension};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Longest text or blob: a summary of a thousand ranks has some megabytes.
const MAX_VALUE_BYTES: i32 = 32 << 20;
/// Values in one text of lists: ten thousand ranks have a third as many. An empty text in a list takes 3 bytes of a file, 24
/// of memory, and as much again while the list grows.
const MOST_VALUES: usize = 3 << 20;
/// Rows that are taken at once: no recorder lets a table grow to as many. Each may take a hundred bytes of memory.
pub(crate) const MOST_ROWS: usize = 1 << 20;
/// Instructions of SQLite's virtual machine between two looks at the budget.
const LOOK_EVERY: i32 = 10_000;
/// A query of an empty file takes fewer instructions than `FREE`, and each row that fits into a file takes fewer than
/// `EACH_BYTE` a byte: its 10 to 20 columns make some 40 instructions for at least 20 bytes, and a sort reads each twice.
const FREE: u64 = 5_000_000;
const EACH_BYTE: u64 = 20;

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

/// How many instructions a question may still take.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Arc<AtomicU64>,
    extent: Extent,
}

impl Budget {
    /// Bounds what `connection`, to a file of so many bytes, may use.
    pub(crate) fn bound(connection: &mut Connection, bytes: u64, extent: Extent) -> rusqlite::Result<Budget> {
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
        // Memory, not a folder of the system's that would fill up.
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        let left = Arc::new(AtomicU64::new(0));
        let budget = Budget { left: left.clone(), extent };
        budget.refill(bytes);
        let exceeded = move || {
            let left = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(LOOK_EVERY as u64));
            left.is_err()
        };
        connection.progress_handler(LOOK_EVERY, Some(exceeded))?;
        Ok(budget)
    }

    /// A new question begins, to a file that has so many bytes by now.
    pub(crate) fn refill(&self, bytes: u64) {
        let bytes = if self.extent == Extent::Head { 0 } else { bytes };
        self.left.store(FREE.saturating_add(bytes.saturating_mul(EACH_BYTE)), Relaxed);
    }
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
