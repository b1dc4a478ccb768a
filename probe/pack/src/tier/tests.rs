//! What is read through the folder is what the store has, whatever becomes of the folder, and it stays within its limit.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod faults;
mod sharing;

use super::*;
use crate::error::Error;
use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

const BYTES: u64 = 1000;

/// A store in memory, and what was asked of it at a time.
#[derive(Debug, Default)]
struct Memory {
    objects: Mutex<HashMap<String, Vec<u8>>>,
    asked: Mutex<Vec<Vec<Wanted>>>,
    delay: Duration,
}

impl Memory {
    fn of(chunks: &[(Id, Vec<u8>)]) -> Memory {
        let objects = chunks.iter().map(|(id, bytes)| (id.file_name(), bytes.clone())).collect();
        Memory { objects: Mutex::new(objects), ..Memory::default() }
    }

    /// Requests since it was called last.
    fn asked(&self) -> Vec<Vec<Wanted>> {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, as (number of the chunk, range).
    fn ranges(&self) -> Vec<(u8, Range<u64>)> {
        self.asked().into_iter().flatten().map(|one| (number_of(&one.name), one.range)).collect()
    }

    fn change(&self, number: u8, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.objects.lock().unwrap().get_mut(&id(number).file_name()).unwrap());
    }
}

impl Objects for Memory {
    fn read(&self, wanted: &[Wanted]) -> Vec<Result<Got>> {
        assert!(!wanted.is_empty(), "nothing is asked for");
        self.asked.lock().unwrap().push(wanted.to_vec());
        std::thread::sleep(self.delay);
        let objects = self.objects.lock().unwrap();
        let one = |wanted: &Wanted| {
            let path = PathBuf::from(&wanted.name);
            let object = objects.get(&wanted.name).ok_or_else(|| {
                let source = io::Error::new(ErrorKind::NotFound, "there is no such object");
                Error::Io { doing: "read", path: path.clone(), source }
            })?;
            let range = wanted.range.start as usize..(wanted.range.end as usize).min(object.len());
            match object.get(range) {
                Some(bytes) if !bytes.is_empty() => {
                    Ok(Got { bytes: bytes.to_vec(), size: object.len() as u64 })
                }
                _ => Err(Error::Damaged { path, what: "it is cut".into() }),
            }
        };
        wanted.iter().map(one).collect()
    }

    fn whole(&self, name: &str, _most_bytes: u64) -> Result<Option<Vec<u8>>> {
        Ok(self.objects.lock().unwrap().get(name).cloned())
    }
}

fn id(number: u8) -> Id {
    Id::written(u64::from(number), [number; 8])
}

fn number_of(name: &str) -> u8 {
    Id::of_file_name(name.as_bytes()).unwrap().written_ns() as u8
}

fn bytes_of(number: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 7) as u8 ^ number).collect()
}

/// So many chunks, from this number on.
fn chunks(from: u8, count: u8) -> Vec<(Id, Vec<u8>)> {
    (from..from + count).map(|number| (id(number), bytes_of(number))).collect()
}

fn sizes(chunks: &[(Id, Vec<u8>)]) -> Vec<(Id, u64)> {
    chunks.iter().map(|(id, bytes)| (*id, bytes.len() as u64)).collect()
}

fn wanted(number: u8, range: Range<u64>) -> Wanted {
    Wanted { name: id(number).file_name(), range }
}

/// A folder, and a store with ten chunks of 1,000 bytes.
struct Case {
    dir: TempDir,
    memory: Arc<Memory>,
}

impl Case {
    fn new() -> Case {
        Case { dir: tempfile::tempdir().unwrap(), memory: Arc::new(Memory::of(&chunks(0, 10))) }
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("scratch/kept")
    }

    fn local(&self, limit: u64) -> Local {
        Local { folder: self.folder(), limit: Some(limit), warn: |_| {} }
    }

    /// Of a version; with the chunks of the store.
    fn open(&self, version: u8, limit: u64) -> Tier {
        Tier::open(self.memory.clone(), &self.local(limit), [version; 32], sizes(&chunks(0, 10))).unwrap()
    }

    /// Files of chunks, and their bytes.
    fn files(&self) -> Vec<PathBuf> {
        let entries = self.folder().read_dir().unwrap().map(|entry| entry.unwrap().path());
        let mut chunks: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|end| end == "chunk")).collect();
        chunks.sort();
        chunks
    }

    fn taken(&self) -> u64 {
        self.files().iter().map(|path| path.metadata().unwrap().len()).sum()
    }

    fn file(&self, version: u8, number: u8) -> PathBuf {
        self.folder().join(files::chunk_name(&files::state_of([version; 32]), id(number)))
    }

    fn counted(&self) -> u64 {
        let folder = stallscope_folder::Folder::open(&self.folder()).unwrap();
        account::Account::lock(&folder, Duration::ZERO).unwrap().unwrap().total().unwrap()
    }
}

/// Reads a range of each chunk, one after the other, and compares it.
fn read_each(tier: &Tier, numbers: impl IntoIterator<Item = u8>) {
    for number in numbers {
        let got = tier.read(&[wanted(number, 100..200)]).remove(0).unwrap();
        assert_eq!(got, Got { bytes: bytes_of(number)[100..200].to_vec(), size: BYTES });
    }
}

#[test]
fn the_first_read_of_a_chunk_fetches_it_whole_and_all_others_none() {
    let case = Case::new();
    let tier = case.open(1, 1 << 20);
    read_each(&tier, 0..10);
    assert_eq!(case.memory.ranges(), (0..10).map(|number| (number, 0..BYTES)).collect::<Vec<_>>());
    let all: Vec<_> =
        (0..10).flat_map(|number| [wanted(number, 0..BYTES), wanted(number, 999..1000)]).collect();
    for (one, got) in all.iter().zip(tier.read(&all)) {
        let expected = &bytes_of(number_of(&one.name))[one.range.start as usize..one.range.end as usize];
        assert_eq!(got.unwrap().bytes, expected);
    }
    // Of another process, as of the next run.
    read_each(&case.open(1, 1 << 20), 0..10);
    assert_eq!(case.memory.ranges(), []);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&case.folder()), 0o700);
    assert!(case.folder().read_dir().unwrap().all(|entry| mode(&entry.unwrap().path()) == 0o600));
    assert_eq!((case.taken(), case.counted()), (10 * BYTES, 10 * BYTES));
}

#[test]
fn chunks_of_one_read_are_fetched_together_and_each_once() {
    let case = Case::new();
    let tier = case.open(1, 1 << 20);
    let all: Vec<_> = [3, 1, 3, 2, 1].map(|number| wanted(number, u64::from(number) * 50..500)).into();
    let found = tier.read(&all);
    for (one, got) in all.iter().zip(found) {
        assert_eq!(got.unwrap().bytes, &bytes_of(number_of(&one.name))[one.range.start as usize..500]);
    }
    let asked = case.memory.asked();
    assert_eq!(asked, [[3, 1, 2].map(|number| wanted(number, 0..BYTES))]);
}

#[test]
fn what_is_no_chunk_of_the_pack_is_not_kept() {
    let case = Case::new();
    let snapshot = ("snapshot".to_owned(), vec![1; 500]);
    case.memory.objects.lock().unwrap().extend([snapshot, (id(77).file_name(), bytes_of(77))]);
    let tier = case.open(1, 1 << 20);
    let all = [Wanted { name: "snapshot".into(), range: 5..9 }, wanted(77, 5..9), wanted(4, 2000..2001)];
    for _ in 0..2 {
        let found = tier.read(&all);
        assert_eq!(found[0].as_ref().unwrap().bytes, [1; 4]);
        assert!(found[1].is_ok() && found[2].is_err());
        assert_eq!(case.memory.asked(), [all.to_vec()]);
    }
    assert_eq!(tier.whole("snapshot", 1000).unwrap().unwrap().len(), 500);
    assert_eq!(case.taken(), 0);
}

#[test]
fn beyond_the_limit_ranges_are_read_and_what_came_first_stays() {
    let case = Case::new();
    let tier = case.open(1, 5 * BYTES + BYTES / 2);
    for epoch in 0..3 {
        // In another order each time.
        read_each(&tier, (0..10).map(|number| (number * 3 + epoch) % 10));
        let (whole, ranges): (Vec<_>, Vec<_>) =
            case.memory.ranges().into_iter().partition(|(_, range)| *range == (0..BYTES));
        assert_eq!((whole.len(), ranges.len()), if epoch == 0 { (5, 5) } else { (0, 5) });
        assert_eq!((case.taken(), case.counted()), (5 * BYTES, 5 * BYTES));
    }
    // Nothing fits into less than a chunk.
    let none = Case::new();
    read_each(&none.open(1, BYTES - 1), 0..10);
    assert_eq!(none.taken(), 0);
}

#[test]
fn a_lower_limit_is_of_what_is_there_as_well() {
    let case = Case::new();
    read_each(&case.open(1, 1 << 20), 0..10);
    drop(case.open(1, 3 * BYTES));
    assert_eq!((case.taken(), case.counted()), (3 * BYTES, 3 * BYTES));
}

#[test]
fn a_large_chunk_is_fetched_piece_by_piece() {
    let size = FETCHED_AT_ONCE_BYTES + 1000;
    let large = vec![7; size as usize];
    let case = Case {
        dir: tempfile::tempdir().unwrap(),
        memory: Arc::new(Memory::of(&[(id(0), large), (id(1), bytes_of(1))])),
    };
    let tier =
        Tier::open(case.memory.clone(), &case.local(1 << 30), [1; 32], vec![(id(0), size), (id(1), BYTES)])
            .unwrap();
    let (border, end) = (FETCHED_AT_ONCE_BYTES - 10, size - 1);
    let found = tier.read(&[wanted(0, border..border + 20), wanted(1, 0..9), wanted(0, end..size)]);
    let lengths: Vec<_> = found.into_iter().map(|got| got.unwrap().bytes.len()).collect();
    assert_eq!(lengths, [20, 9, 1]);
    let most = |asked: &[Wanted]| asked.iter().map(|one| one.range.end - one.range.start).sum::<u64>();
    let asked = case.memory.asked();
    assert_eq!(
        asked.iter().map(|asked| most(asked)).collect::<Vec<_>>(),
        [FETCHED_AT_ONCE_BYTES, 1000, BYTES]
    );
    assert_eq!(tier.read(&[wanted(0, 0..size)]).remove(0).unwrap().bytes.len() as u64, size);
    assert!(case.memory.asked().is_empty());
}
