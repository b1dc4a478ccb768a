//! Rows that share the pages of one long value: each is as long as that, and all of them take the space of one. And definitions of which
//! SQLite makes more than they are long. A megabyte of either took gigabytes, or hours.

#![allow(clippy::unwrap_used, reason = "helpers of tests too")]

use crate::support::{job, options, step, summary};
use rusqlite::Connection;
use stallscope_store::{Error, Head, Recorder, Recording};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

const PAGE: usize = 4096;
/// So much that little of it is in the page of its row, with which there may be others.
const LONG: usize = 4092 * 769 + 190;
/// A page has no more.
const MOST_CELLS: usize = 600;

/// A recording to which these statements were done.
fn altered(statements: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let mut recorder =
        Recorder::create(&directory.path().join("run.stall"), &job(), options(directory.path()));
    (0..300).for_each(|index| recorder.step(step(0, index)));
    let path = recorder.finish(&summary()).path.unwrap();
    Connection::open(&path).unwrap().execute_batch(statements).unwrap();
    (directory, path)
}

fn root_of(path: &Path, table: &str) -> usize {
    let sql = format!("SELECT rootpage FROM sqlite_schema WHERE name = '{table}'");
    Connection::open(path).unwrap().query_row(&sql, [], |row| row.get::<_, u32>(0)).unwrap() as usize
}

fn word(page: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([page[at], page[at + 1]]))
}

/// Has the first two rows of `table`, which has one page, be in it as often as pointers to them fit into that, in turn: SQLite does not read the
/// same again.
fn repeat(path: &Path, table: &str) -> usize {
    let root = root_of(path, table);
    let mut bytes = fs::read(path).unwrap();
    let page = &mut bytes[(root - 1) * PAGE..root * PAGE];
    assert_eq!(page[0], 13, "{table} is a page of rows");
    let count = ((word(page, 5) - 8) / 2).min(MOST_CELLS);
    let rows = page[8..12].to_vec();
    assert_eq!(word(page, 3), 2);
    page[3..5].copy_from_slice(&(count as u16).to_be_bytes());
    (0..count).for_each(|nth| page[8 + 2 * nth..10 + 2 * nth].copy_from_slice(&rows[2 * (nth % 2)..][..2]));
    fs::write(path, bytes).unwrap();
    count
}

/// Has `table` consist of pointers to the only page of `other`.
fn lead(path: &Path, table: &str, other: &str) {
    let (root, leaf) = (root_of(path, table), root_of(path, other) as u32);
    let mut bytes = fs::read(path).unwrap();
    let page = &mut bytes[(root - 1) * PAGE..root * PAGE];
    let (cell, count) = (PAGE - 8, MOST_CELLS as u16);
    page.fill(0);
    page[0] = 5;
    page[3..5].copy_from_slice(&count.to_be_bytes());
    page[5..7].copy_from_slice(&(cell as u16).to_be_bytes());
    page[8..12].copy_from_slice(&leaf.to_be_bytes());
    (0..count as usize)
        .for_each(|nth| page[12 + 2 * nth..14 + 2 * nth].copy_from_slice(&(cell as u16).to_be_bytes()));
    page[cell..cell + 4].copy_from_slice(&leaf.to_be_bytes());
    page[cell + 4] = 1;
    fs::write(path, bytes).unwrap();
}

/// What a process has read and taken is that of all of its threads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number behind `name` in a file of /proc.
fn counted(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(Path::new("/proc/self").join(file)).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    value.trim().trim_end_matches(" kB").parse().unwrap()
}

/// SQLite's memory at its highest since this was last asked.
fn highest_bytes() -> i64 {
    // SAFETY: takes a number and gives one, whichever thread asks.
    unsafe { rusqlite::ffi::sqlite3_memory_highwater(1) }
}

/// Reads no more than `read_bytes` for it, again and again what is read again, and takes no gigabyte.
fn costs_at_most<T>(read_bytes: usize, asked: impl FnOnce() -> T) -> T {
    let before = counted("io", "rchar:");
    let found = asked();
    let read = counted("io", "rchar:") - before;
    assert!(read < read_bytes as u64, "{} MB were read", read >> 20);
    let peak = counted("status", "VmHWM:") >> 10;
    assert!(peak < 600, "{peak} MB");
    found
}

#[test]
fn what_many_rows_share_is_not_sorted_as_often() {
    let _alone = alone();
    let (_directory, path) = altered(&format!(
        "DROP TABLE loss; CREATE TABLE loss (reason TEXT, count INTEGER);
        INSERT INTO loss VALUES (hex(zeroblob({0})), 1), (hex(zeroblob({0})), 2)",
        LONG / 2
    ));
    assert_eq!(Recording::open(&path).unwrap().losses().unwrap()[0].reason.len(), LONG);
    let count = repeat(&path, "loss");
    assert!(count > 400);
    let error = costs_at_most(count * LONG / 4, || Recording::open(&path).unwrap().losses().unwrap_err());
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}

#[test]
fn what_many_rows_share_is_not_read_as_often() {
    let _alone = alone();
    let (_directory, path) = altered(&format!(
        "CREATE TABLE long (key TEXT, value TEXT); INSERT INTO long VALUES (hex(zeroblob({0})), ''), (hex(zeroblob({0})), '');
        DROP TABLE meta; CREATE TABLE meta (key TEXT, value TEXT)",
        LONG / 2
    ));
    let rows = MOST_CELLS * repeat(&path, "long");
    lead(&path, "meta", "long");
    let error = costs_at_most(rows / 10 * LONG, || Head::read(&path).unwrap_err());
    assert!(error.to_string().contains("hold more rows"), "{error}");
    let error = costs_at_most(rows / 10 * LONG, || Recording::open(&path).unwrap().state().unwrap_err());
    assert!(error.to_string().contains("hold more rows"), "{error}");
}

/// SQLite keeps samples of indexes in memory as it opens a file that has such.
#[test]
fn samples_of_indexes_take_no_more_memory_than_rows() {
    let _alone = alone();
    let (_directory, path) = altered(&format!(
        "CREATE TABLE long (tbl, idx, neq, nlt, ndlt, sample);
        INSERT INTO long VALUES ('step_detail', 'step_detail_minute', '1 1', '1 1', '1 1', zeroblob({LONG})),
            ('step_detail', 'step_detail_minute', '2 1', '2 2', '2 2', zeroblob({LONG}));
        PRAGMA writable_schema = ON;
        UPDATE sqlite_schema SET name = 'sqlite_stat4', tbl_name = 'sqlite_stat4',
            sql = 'CREATE TABLE sqlite_stat4 (tbl, idx, neq, nlt, ndlt, sample)' WHERE name = 'long'"
    ));
    let count = repeat(&path, "sqlite_stat4");
    let asked = || Recording::open(&path).and_then(|recording| recording.losses()).unwrap_err();
    let error = costs_at_most(count * LONG / 4, asked);
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}

/// Each is compared with all before it.
#[test]
fn a_definition_of_many_constraints_is_none() {
    let _alone = alone();
    let columns: Vec<String> = (0..600).map(|nth| format!("c{nth}")).collect();
    let pairs = (0..300).flat_map(|one| (300..600).map(move |other| format!("UNIQUE(c{one},c{other})")));
    let sql = format!("CREATE TABLE host ({}, {})", columns.join(", "), pairs.collect::<Vec<_>>().join(","));
    let (_directory, path) = altered(&format!(
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = '{sql}' WHERE name = 'host'"
    ));
    highest_bytes();
    let error = costs_at_most(64 << 20, || Head::read(&path).unwrap_err());
    let highest = highest_bytes();
    assert!(highest < 16 << 20, "{highest} bytes: SQLite has read the definition");
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}
