//! The rows of Parquet and Arrow files, each of which becomes a file: the bytes of one column, with the label of another one.

mod arrow;
mod columns;
mod encodings;
mod flat;
mod gzip;
#[cfg(test)]
mod hostile;
mod listing;
mod lz4;
mod pages;
mod parquet;
mod spill;
mod table;
mod thrift;

pub use columns::Columns;
pub use listing::is_tables;

use super::Notice;
use super::origin::{Facts, Item};
use crate::error::{Error, Result};
use crate::names::{fault_of, shown};
use crate::record::Record;

use pages::Page;
use spill::{Made, Spill};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
pub(super) use table::stored;
use table::{DIGITS, Table};

/// A file has no more rows than one for so many of its bytes, and these: what it says of itself is to take no memory beyond that.
const LEAST_ROW_BYTES: u64 = 16;
const ROWS_OF_ANY: u64 = if cfg!(fuzzing) { 1 << 10 } else { 1 << 16 };
/// Of such rows beyond their bytes all files may have so many together: there may be a thousand of few bytes each.
const ROWS_OF_ALL: u64 = if cfg!(any(fuzzing, test)) { 1 << 17 } else { 1 << 22 };
/// Values of a file have no more bytes together than so many times its own, and neither have its pages once expanded; and of all files
/// these beyond that: few bytes are not to fill a disk.
const MOST_EXPANSION: u64 = if cfg!(any(fuzzing, test)) { 1 << 4 } else { 1 << 10 };
const BYTES_OF_ALL: u64 = if cfg!(any(fuzzing, test)) { 1 << 20 } else { 1 << 30 };
/// So many different texts may be labels.
const MOST_WORDS: usize = 1 << 16;
const MOST_WORD_BYTES: usize = 1024;

/// What is wrong with a file, in a few words.
type Read<T> = std::result::Result<T, String>;

fn fault<T>(what: &str) -> Read<T> {
    Err(what.into())
}

fn io_fault(error: io::Error) -> String {
    format!("it cannot be read: {error}")
}

fn most_rows(size: u64) -> u64 {
    (size / LEAST_ROW_BYTES + ROWS_OF_ANY).min(u64::from(u32::MAX))
}

/// What files may yet have together beyond what each may have by its bytes.
#[derive(Debug)]
struct Beyond {
    rows: u64,
    values: Arc<AtomicU64>,
    pages: Arc<AtomicU64>,
}

impl Default for Beyond {
    fn default() -> Beyond {
        Beyond { rows: ROWS_OF_ALL, values: bytes_of_all(), pages: bytes_of_all() }
    }
}

pub(super) fn bytes_of_all() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(BYTES_OF_ALL))
}

/// Bytes that are left to a file.
#[derive(Debug)]
pub(super) struct Left {
    own: u64,
    beyond: Arc<AtomicU64>,
}

impl Left {
    pub(super) fn of(size: u64, beyond: &Arc<AtomicU64>) -> Left {
        Left { own: size.saturating_mul(MOST_EXPANSION), beyond: Arc::clone(beyond) }
    }

    /// Whether there were so many, which are taken.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.own);
        let taken = self.beyond.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(more));
        self.own -= if taken.is_ok() { bytes - more } else { 0 };
        taken.is_ok()
    }
}

/// The rows of some files, by name.
#[derive(Debug)]
pub(super) struct Tables {
    tables: Vec<Table>,
    by_folder: HashMap<Vec<u8>, usize>,
    spill: Spill,
    has_words: bool,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    place: Place,
    bytes: u64,
    /// The largest number for none.
    label: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not known yet.
    Unread,
    Null,
    /// It cannot be read.
    Gone,
    InFile(u64),
    InSpill(u64),
    /// The pack has it.
    Packed,
}

/// Labels as they are read: numbers, or texts, which get the numbers of their order at the end.
#[derive(Debug, Default)]
struct Labels {
    words: HashMap<Vec<u8>, u32>,
    has_numbers: bool,
    /// How many of the file that is read are no labels.
    unfit: u64,
}

impl Labels {
    fn number(&mut self, number: i64) -> Read<u32> {
        self.has_numbers = true;
        if !self.words.is_empty() {
            return fault("its labels are numbers, and those of other files are texts");
        }
        match u32::try_from(number) {
            Ok(label) if label != u32::MAX => Ok(label),
            // What Hugging Face has for none.
            _ if number == -1 => Ok(u32::MAX),
            _ => {
                self.unfit += 1;
                Ok(u32::MAX)
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Read<u32> {
        if self.has_numbers {
            return fault("its labels are texts, and those of other files are numbers");
        }
        if word.len() > MOST_WORD_BYTES {
            return Err(format!(
                "one of its labels has {} bytes, where {MOST_WORD_BYTES} are the most; name another column by --label",
                word.len()
            ));
        }
        if let Some(number) = self.words.get(word) {
            return Ok(*number);
        }
        if self.words.len() == MOST_WORDS {
            return Err(format!(
                "its labels have more than {MOST_WORDS} different texts, and so are none; name another column by --label"
            ));
        }
        let number = self.words.len() as u32;
        self.words.insert(word.to_vec(), number);
        Ok(number)
    }

    /// Those of a page. `known`: of entries of its column's dictionary, each of which is looked up once, however many rows have it.
    fn words(&mut self, page: &Page, known: &mut HashMap<u32, u32>) -> Read<Vec<u32>> {
        let of = |(at, word)| match page.entries.get(at).map(|entry| known.entry(*entry)) {
            Some(Entry::Occupied(number)) => Ok(*number.get()),
            Some(Entry::Vacant(place)) => Ok(*place.insert(self.word(word)?)),
            None => self.word(word),
        };
        page.bytes()?.enumerate().map(of).collect()
    }

    /// Of each text's number that which it has in their order.
    fn in_order(&self) -> Vec<u32> {
        let mut sorted: Vec<(&Vec<u8>, u32)> =
            self.words.iter().map(|(word, number)| (word, *number)).collect();
        sorted.sort_unstable();
        let mut order = vec![u32::MAX; sorted.len()];
        (0..).zip(sorted).for_each(|(place, (_, number))| order[number as usize] = place);
        order
    }
}

impl Tables {
    /// Looks into these files, or all of a folder. `problem` hears a sentence for each that cannot be packed, `found` how many rows there are.
    ///
    /// # Errors
    /// One cannot be opened, or it is not clear which columns are meant.
    pub(super) fn of(
        paths: &[PathBuf],
        columns: Columns<'_>,
        problem: &mut dyn FnMut(String),
        found: &mut dyn FnMut(u64),
    ) -> Result<Tables> {
        let (by_folder, spill) = (HashMap::new(), Spill::default());
        let mut tables = Tables { tables: Vec::new(), by_folder, spill, has_words: false };
        let (mut labels, mut beyond, mut count) = (Labels::default(), Beyond::default(), 0);
        for (path, file) in listing::opened(paths)? {
            let folder = path.file_stem().unwrap_or_default().as_bytes().to_vec();
            if let Some(fault) = fault_of(&folder) {
                problem(format!("{} is not packed: {fault}", path.display()));
                continue;
            }
            if let Some(other) = tables.by_folder.get(&folder) {
                return Err(Error::Refused(format!(
                    "{} and {} would have the same names in the pack, which begin with {}; rename one",
                    tables.tables[*other].path.display(),
                    path.display(),
                    shown(&folder)
                )));
            }
            let table = Table::read(path, folder, file, columns, &mut labels, &mut beyond, problem)?;
            let Some(table) = table else { continue };
            count += table.rows.len() as u64;
            tables.by_folder.insert(table.folder.clone(), tables.tables.len());
            tables.tables.push(table);
            found(count);
        }
        tables.has_words = !labels.words.is_empty();
        if tables.has_words {
            let order = labels.in_order();
            for row in tables.tables.iter_mut().flat_map(|table| &mut table.rows) {
                row.label = order.get(row.label as usize).copied().unwrap_or(u32::MAX);
            }
        }
        Ok(tables)
    }

    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        let rows = |table: &Table| {
            let packable = (0..table.rows.len()).filter(|row| table.rows[*row].is_packable());
            packable.map(|row| table.name(row)).collect::<Vec<_>>()
        };
        self.tables.iter().flat_map(rows).collect()
    }

    /// Whether labels have their numbers by the order of texts.
    pub(super) fn has_words(&self) -> bool {
        self.has_words
    }

    fn row(&self, name: &[u8]) -> Option<(&Table, usize)> {
        let slash = name.iter().position(|byte| *byte == b'/')?;
        let table = &self.tables[*self.by_folder.get(&name[..slash])?];
        let digits = name.get(slash + 1..slash + 1 + DIGITS)?;
        let number: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let is_one = table.rows.get(number).is_some_and(Row::is_packable);
        (is_one && table.name(number) == name).then_some((table, number))
    }

    /// Whether there is such a row, and it can be packed.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.row(name).is_some()
    }

    /// The label that came with a row.
    pub(super) fn label(&self, name: &[u8]) -> Option<u32> {
        self.row(name).map(|(table, row)| table.rows[row].label).filter(|label| *label != u32::MAX)
    }

    pub(super) fn shown(&self, name: &[u8]) -> String {
        match self.row(name) {
            Some((table, row)) => format!("row {row} of {}", table.path.display()),
            None => shown(name),
        }
    }

    pub(super) fn facts(&self, name: &[u8]) -> io::Result<Facts> {
        let (table, row) = self.row(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Facts { bytes: table.rows[row].bytes, mtime_ns: table.facts.mtime_ns })
    }

    pub(super) fn open(&self, name: &[u8]) -> io::Result<Item> {
        let (table, row) = self.row(name).ok_or(io::ErrorKind::NotFound)?;
        let facts = self.facts(name)?;
        match table.rows[row].place {
            Place::InFile(at) => Ok(Item::within(table.file.clone(), table.facts, at, facts)),
            Place::InSpill(at) => self.spill.open(at, facts),
            Place::Unread | Place::Null | Place::Gone | Place::Packed => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Finds the bytes of all rows that the pack does not have, and expands them into a file without a name, which `make` makes. After that rows can be
    /// opened. How many sentences there were.
    ///
    /// # Errors
    /// That file cannot be written.
    pub(super) fn unpack<'r>(
        &mut self,
        make: &dyn Fn() -> Result<Made>,
        known: &dyn Fn(&[u8]) -> Option<&'r Record>,
        tell: &mut dyn FnMut(Notice<'_>),
    ) -> Result<u64> {
        let (mut done, mut bytes, mut sentences) = (0, 0, 0);
        let groups = self.tables.iter().flat_map(|table| &table.groups);
        let all: u64 = groups.map(|group| group.rows).sum();
        for table in &mut self.tables {
            let mut first = 0;
            for group in std::mem::take(&mut table.groups) {
                let end = first + group.rows as usize;
                if !table.is_packed(first..end, known)
                    && let Err(what) = table.unpack(&group, first, make, &mut self.spill)?
                {
                    let rows = first..end;
                    let mut gone = rows.filter(|row| table.rows[*row].place == Place::Unread).peekable();
                    let from = gone.peek().copied().unwrap_or(first);
                    gone.collect::<Vec<_>>().into_iter().for_each(|row| table.rows[row].place = Place::Gone);
                    let path = table.path.display();
                    tell(Notice::Problem(&format!(
                        "rows {from} to {} of {path} are not packed: {what}",
                        end - 1
                    )));
                    sentences += 1;
                }
                bytes += group.part.end - group.part.begin;
                done += group.rows;
                first = end;
                tell(Notice::Unpacked(done, all, bytes));
            }
            for sentence in [table.changed()?, table.nulls()].into_iter().flatten() {
                tell(Notice::Problem(&sentence));
                sentences += 1;
            }
        }
        self.spill.is_written()?;
        Ok(sentences)
    }
}

impl Row {
    fn is_packable(&self) -> bool {
        !matches!(self.place, Place::Null | Place::Gone)
    }
}
