//! A chunk, a snapshot, a list of deletions or a compressed record of a pack from elsewhere: whatever it says, what is read of it lies within it, nothing is written
//! outside of the folder that was named, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_pack::{
    Chunk, DELETED, Deleted, Disk, Pack, Snapshot, build, chunk_compressed, expanded, extract, fault_of,
    rebuild, seal, seal_deleted, seal_snapshot, verify,
};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

// Bits of the first byte.
const OF_SNAPSHOT: u8 = 1;
const SEALED: u8 = 2;
const IN_FOLDER: u8 = 4;
const OF_DELETED: u8 = 8;
const OF_FRAME: u8 = 16;
/// So many records are looked at.
const MOST: usize = 64;

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

fn snapshot(bytes: Vec<u8>) {
    let count = bytes.len();
    let Ok(snapshot) = Snapshot::parse(bytes, Path::new("snapshot")) else { return };
    for number in 0..snapshot.chunks().min(MOST) {
        let _ = snapshot.chunk(number);
    }
    for number in 0..snapshot.records().min(MOST) {
        let Ok(entry) = snapshot.entry(number) else { continue };
        assert!(entry.name.len() <= count && entry.chunk < snapshot.chunks());
        if let Ok(Some(found)) = snapshot.find(entry.name) {
            assert_eq!(snapshot.entry(found).expect("it was found").name, entry.name);
        }
    }
    let _ = snapshot.find(b"no name");
    stallscope_mount::list_any(&snapshot);
}

/// What a snapshot made of it finds is what it says.
fn chunk(bytes: &[u8]) {
    let Ok(chunk) = Chunk::read(bytes, Path::new("x.chunk")) else { return };
    let stored: u64 = chunk.records.iter().map(|record| record.stored_bytes).sum();
    let names: usize = chunk.records.iter().map(|record| record.name.len()).sum();
    assert!(stored + names as u64 <= bytes.len() as u64);
    for record in chunk.records.iter().take(MOST) {
        if let Ok(found) = chunk.record(bytes, record) {
            assert_eq!(found.len() as u64, record.bytes);
        }
    }
    let newest: BTreeMap<_, _> =
        chunk.records.iter().map(|record| (record.name.clone(), record.offset)).collect();
    let made = build(chunk.pack, std::slice::from_ref(&chunk), &Deleted::default()).expect("few records");
    let made = Snapshot::parse(made, Path::new("snapshot")).expect("what was built");
    assert_eq!(made.records(), newest.len());
    for (name, offset) in &newest {
        let found = made.find(name).expect("what was built is whole").expect("each name is there");
        assert_eq!(made.entry(found).expect("what was built is whole").offset, *offset);
    }
}

/// A frame of a record that says it has so many bytes expands to as many or is refused; and what is compressed comes back.
fn frame(bytes: &[u8]) {
    if let Some((count, frame)) = bytes.split_first_chunk() {
        let count = u64::from(u16::from_le_bytes(*count));
        if let Ok(found) = expanded(frame, count) {
            assert_eq!(found.len() as u64, count);
        }
    }
    let (id, about) = (stallscope_pack::Id([3; 16]), stallscope_pack::About::default());
    let written =
        chunk_compressed(id, id, &[(b"a", bytes, about)], Some(1)).expect("a name that may be packed");
    let chunk = Chunk::read(written.as_slice(), Path::new("x.chunk")).expect("what was written");
    let record = &chunk.records[0];
    assert!(record.bytes == bytes.len() as u64 && record.stored_bytes <= record.bytes);
    assert_eq!(chunk.record(written.as_slice(), record).as_deref(), Ok(bytes));
}

fn folder(root: &Path, bytes: &[u8]) {
    let (dir, out) = (root.join("pack"), root.join("out"));
    let _ = (fs::remove_dir_all(&dir), fs::remove_dir_all(&out));
    fs::create_dir_all(&dir).expect("a folder in memory");
    let name = match Chunk::read(bytes, Path::new("x.chunk")) {
        Ok(chunk) => chunk.id.file_name(),
        Err(_) => stallscope_pack::Id::written(1, [0; 8]).file_name(),
    };
    fs::write(dir.join(name), bytes).expect("a file in memory");
    let _ = verify(&dir, &mut |_, _| {});
    let rebuilt = rebuild(&dir, false, &Disk, &mut |_, _| {}).is_ok();
    let Ok(pack) = Pack::open(&dir) else { return assert!(!rebuilt) };
    let verified = verify(&dir, &mut |_, _| {}).expect("a pack");
    let mut problems = 0;
    let extracted = extract(&pack, &[], &out, &mut |_| problems += 1).expect("a folder in memory");
    assert_eq!(extracted.asked, extracted.files + problems);
    let entries =
        (0..pack.snapshot().records()).map(|number| pack.snapshot().entry(number).expect("it was rebuilt"));
    let safe = entries.filter(|entry| fault_of(entry.name).is_none()).count() as u64;
    assert!(extracted.files <= safe.min(verified.records));
    let beside: Vec<_> =
        fs::read_dir(root).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(beside.iter().all(|name| name == "pack" || name == "out"), "{beside:?}");
}

/// What is read of it is as many marks as there are bits, and a pack that has it is read or refused.
fn deleted(root: &Path, bytes: &[u8]) {
    let id = stallscope_pack::Id::written(1, [2; 8]);
    let record = |name: &'static [u8]| (name, &b"x"[..], stallscope_pack::About::default());
    let pack = match Deleted::parse(bytes, Path::new(DELETED)) {
        Ok((pack, deleted)) => {
            let _ = deleted.is(id, usize::MAX);
            pack
        }
        Err(_) => stallscope_pack::Id([3; 16]),
    };
    let chunk = stallscope_pack::chunk_of(id, pack, &[record(b"a/1"), record(b"b/2")])
        .expect("names that may be packed");
    let dir = root.join("pack");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a folder in memory");
    fs::write(dir.join(id.file_name()), chunk).expect("a file in memory");
    rebuild(&dir, false, &Disk, &mut |_, _| {}).expect("a chunk that is whole");
    fs::write(dir.join(DELETED), bytes).expect("a file in memory");
    let pack = Pack::open(&dir).expect("the snapshot is whole");
    assert_eq!(pack.snapshot().records(), 2);
    let is_whole = rebuild(&dir, false, &Disk, &mut |_, _| {}).is_ok();
    let verified = verify(&dir, &mut |_, _| {}).expect("a pack");
    assert_eq!(is_whole, verified.faults.is_empty());
}

fn in_memory(act: impl FnOnce(&Path)) {
    FOLDER.with(|made| {
        let made = made.get_or_init(|| tempfile::tempdir_in("/dev/shm").expect("a folder in memory"));
        act(made.path());
    });
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    if kind & OF_FRAME != 0 {
        return frame(bytes);
    }
    let mut bytes = bytes.to_vec();
    if kind & OF_DELETED != 0 {
        if kind & SEALED != 0 {
            seal_deleted(&mut bytes);
        }
        return in_memory(|root| deleted(root, &bytes));
    }
    match kind & OF_SNAPSHOT != 0 {
        true => {
            if kind & SEALED != 0 {
                seal_snapshot(&mut bytes);
            }
            snapshot(bytes);
        }
        false => {
            if kind & SEALED != 0 {
                seal(&mut bytes);
            }
            chunk(&bytes);
            if kind & IN_FOLDER != 0 {
                in_memory(|root| folder(root, &bytes));
            }
        }
    }
});
