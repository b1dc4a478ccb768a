//! Disks that fail, and files that are not what they should be.

use super::budget::Space;
use super::store::{Medium, System};
use super::*;
use std::os::unix::fs::symlink;
use std::sync::atomic::AtomicUsize;

/// A disk on which operations fail.
#[derive(Debug, Default)]
pub(super) struct Faulty {
    pub(super) space: Option<Space>,
    pub(super) allocate: Option<ErrorKind>,
    pub(super) write: Option<ErrorKind>,
}

impl Medium for Faulty {
    fn space(&self, folder: &stallscope_folder::Folder) -> io::Result<Space> {
        self.space.map_or_else(|| System.space(folder), Ok)
    }

    fn allocate(&self, file: &fs::File, bytes: u64) -> io::Result<()> {
        self.allocate.map_or_else(|| System.allocate(file, bytes), |kind| Err(kind.into()))
    }

    fn write(&self, file: &fs::File, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write.map_or_else(|| System.write(file, bytes, at), |kind| Err(kind.into()))
    }
}

#[test]
fn a_disk_that_is_full_or_fails_costs_reads_of_the_store_and_one_line() {
    static WARNED: AtomicUsize = AtomicUsize::new(0);
    let warn = |sentence: &str| {
        assert!(sentence.contains("kept takes no more chunks for now"), "{sentence}");
        WARNED.fetch_add(1, Ordering::Relaxed);
    };
    for (allocate, write) in [
        (Some(ErrorKind::StorageFull), None),
        (None, Some(ErrorKind::StorageFull)),
        (None, Some(ErrorKind::Other)),
    ] {
        let case = Case::new();
        let medium = Box::new(Faulty { allocate, write, ..Faulty::default() });
        let local = Local { warn, ..case.local(1 << 20) };
        let tier =
            Tier::open_on(case.memory.clone(), &local, [1; 32], sizes(&chunks(0, 10)), medium).unwrap();
        WARNED.store(0, Ordering::Relaxed);
        read_each(&tier, 0..10);
        // What came of the first chunk is handed over though it could not be kept.
        let first = if write.is_some() { 0..BYTES } else { 100..200 };
        let ranges = case.memory.ranges();
        assert_eq!((ranges.len(), &ranges[0], &ranges[1]), (10, &(0, first), &(1, 100..200)));
        assert_eq!((WARNED.load(Ordering::Relaxed), case.counted()), (1, 0));
        assert_eq!(case.folder().read_dir().unwrap().count(), 2, "the account and the lock");
        // The disk has space again.
        tier.paused_until.store(0, Ordering::Relaxed);
        read_each(&tier, [5]);
        assert_eq!(WARNED.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn a_piece_that_cannot_be_written_leaves_the_rest_to_the_store() {
    let size = FETCHED_AT_ONCE_BYTES + 1000;
    let case = Case {
        dir: tempfile::tempdir().unwrap(),
        memory: Arc::new(Memory::of(&[(id(0), vec![7; size as usize])])),
    };
    let medium = Box::new(Faulty { write: Some(ErrorKind::StorageFull), ..Faulty::default() });
    let tier = Tier::open_on(case.memory.clone(), &case.local(1 << 30), [1; 32], vec![(id(0), size)], medium)
        .unwrap();
    let found = tier.read(&[wanted(0, size - 9..size), wanted(0, 0..5)]);
    assert_eq!(found.into_iter().map(|got| got.unwrap().bytes.len()).collect::<Vec<_>>(), [9, 5]);
    assert_eq!(case.memory.ranges(), [(0, 0..FETCHED_AT_ONCE_BYTES), (0, size - 9..size), (0, 0..5)]);
}

#[test]
fn a_folder_that_is_removed_or_emptied_costs_reads_of_the_store() {
    let case = Case::new();
    let tier = case.open(1, 1 << 20);
    read_each(&tier, 0..5);
    for file in case.files() {
        fs::remove_file(file).unwrap();
    }
    fs::remove_file(case.folder().join("account")).unwrap();
    read_each(&tier, 0..10);
    assert_eq!((case.taken(), case.counted()), (10 * BYTES, 10 * BYTES));
    fs::remove_dir_all(case.folder()).unwrap();
    read_each(&tier, 0..10);
    assert!(!case.folder().exists());
    case.memory.asked();
    read_each(&tier, 0..10);
    assert!(
        case.memory.ranges().iter().all(|(_, range)| *range == (100..200)),
        "it is left alone for a while"
    );
}

#[test]
fn a_chunk_that_came_damaged_is_fetched_anew_and_given_up_where_that_does_not_help() {
    let case = Case::new();
    let tier = case.open(1, 1 << 20);
    read_each(&tier, [3]);
    let flip = || {
        let mut bytes = fs::read(case.file(1, 3)).unwrap();
        bytes[150] ^= 1;
        fs::write(case.file(1, 3), bytes).unwrap();
    };
    flip();
    assert_ne!(tier.read(&[wanted(3, 150..151)]).remove(0).unwrap().bytes, bytes_of(3)[150..151]);
    tier.forget(&id(3).file_name());
    assert_eq!(case.counted(), 0);
    case.memory.asked();
    read_each(&tier, [3]);
    assert_eq!(case.memory.ranges(), [(3, 0..BYTES)]);
    assert_eq!(fs::read(case.file(1, 3)).unwrap(), bytes_of(3));
    flip();
    tier.forget(&id(3).file_name());
    case.memory.asked();
    read_each(&tier, [3, 3]);
    assert_eq!(case.memory.ranges(), [(3, 100..200), (3, 100..200)]);
    assert!(!case.file(1, 3).exists());
    // What is not kept came from the store.
    tier.forget(&id(4).file_name());
    tier.forget("snapshot");
    read_each(&tier, [4]);
    assert_eq!(case.memory.ranges(), [(4, 0..BYTES)]);
}

#[test]
fn files_that_are_cut_longer_or_none_are_no_chunks() {
    let case = Case::new();
    let tier = case.open(1, 1 << 20);
    read_each(&tier, 0..6);
    case.memory.asked();
    let file = |number| case.file(1, number);
    fs::write(file(0), &bytes_of(0)[..500]).unwrap();
    fs::write(file(1), [bytes_of(1), vec![0]].concat()).unwrap();
    for number in 2..6 {
        fs::remove_file(file(number)).unwrap();
    }
    fs::write(case.dir.path().join("elsewhere"), bytes_of(9)).unwrap();
    symlink(case.dir.path().join("elsewhere"), file(2)).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, file(3), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    fs::create_dir(file(4)).unwrap();
    symlink("/nowhere", file(5)).unwrap();
    read_each(&tier, (0..6).rev());
    let fetched = case.memory.ranges();
    assert_eq!(fetched.len(), 6);
    tier.paused_until.store(0, Ordering::Relaxed);
    read_each(&tier, [0, 1, 2, 3, 5]);
    case.memory.asked();
    read_each(&tier, [0, 1, 2, 3, 5]);
    assert_eq!(case.memory.ranges(), [], "all but the folder are replaced");
    assert_eq!(fs::read(case.dir.path().join("elsewhere")).unwrap(), bytes_of(9));
}

#[test]
fn an_account_that_is_something_else_is_counted_anew() {
    let case = Case::new();
    let tier = case.open(1, 3 * BYTES);
    read_each(&tier, 0..2);
    for content in [&b""[..], b"something else", &[0; 12]] {
        fs::write(case.folder().join("account"), content).unwrap();
        read_each(&tier, 2..10);
        assert_eq!((case.taken(), case.counted()), (3 * BYTES, 3 * BYTES));
    }
    fs::remove_file(case.file(1, 2)).unwrap();
    fs::write(case.folder().join("notes.txt"), [0; 5000]).unwrap();
    drop(case.open(1, 3 * BYTES));
    assert_eq!(case.counted(), 2 * BYTES, "what is not ours does not count");
}

#[test]
fn what_the_store_answers_is_handed_on_and_nothing_of_it_kept() {
    let case = Case::new();
    let tier = case.open(1, 1 << 20);
    case.memory.objects.lock().unwrap().remove(&id(3).file_name());
    let found = tier.read(&[wanted(3, 0..5), wanted(3, 5..9), wanted(4, 0..5)]);
    for gone in &found[..2] {
        assert!(
            matches!(gone, Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound),
            "{gone:?}"
        );
    }
    assert!(found[2].is_ok());
    case.memory.asked();
    case.memory.change(5, |bytes| bytes.truncate(400));
    for _ in 0..2 {
        let found = tier.read(&[wanted(5, 0..5), wanted(5, 450..460)]);
        assert_eq!(found[0].as_ref().unwrap(), &Got { bytes: bytes_of(5)[..5].to_vec(), size: 400 });
        assert!(found[1].is_err());
    }
    // Once whole, and then no more.
    assert_eq!(case.memory.asked().iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 2]);
    assert_eq!((case.taken(), case.counted()), (BYTES, BYTES));
}

#[test]
fn a_folder_that_is_not_the_users_own_is_refused() {
    let case = Case::new();
    let refused = |words: &str| {
        let local = case.local(1 << 20);
        let opened = Tier::open(case.memory.clone(), &local, [1; 32], Vec::new());
        let sentence = opened.unwrap_err().to_string();
        assert!(sentence.contains(words) && sentence.contains("cannot keep chunks in"), "{sentence}");
    };
    let mode = |mode| fs::set_permissions(case.folder(), fs::Permissions::from_mode(mode)).unwrap();
    drop(case.open(1, 1 << 20));
    for writable in [0o777, 0o1777, 0o722, 0o770] {
        mode(writable);
        refused("other users may write to it");
    }
    mode(0o755);
    drop(case.open(1, 1 << 20));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(case.folder(), Some(4343), None).unwrap();
        refused("belongs to another user");
    }
    fs::remove_dir_all(case.folder()).unwrap();
    fs::write(case.folder(), "").unwrap();
    refused("Not a directory");
    fs::remove_file(case.folder()).unwrap();
    fs::create_dir(case.folder()).unwrap();
    mode(0o700);
    fs::create_dir(case.folder().join("account")).unwrap();
    refused("Is a directory");
}
