//! A chunk or a snapshot of a pack from elsewhere: whatever it says, what is read of it lies within it, nothing is written
//! outside of the folder that was named, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_pack::{
    Chunk, Disk, Pack, Snapshot, build, extract, fault_of, rebuild, seal, seal_snapshot, verify,
};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

// Bits of the first byte.
const OF_SNAPSHOT: u8 = 1;
const SEALED: u8 = 2;
const IN_FOLDER: u8 = 4;
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
}

/// What a snapshot made of it finds is what it says.
fn chunk(bytes: &[u8]) {
    let Ok(chunk) = Chunk::read(bytes, Path::new("x.chunk")) else { return };
    let stored: u64 = chunk.records.iter().map(|record| record.stored_bytes).sum();
    let names: usize = chunk.records.iter().map(|record| record.name.len()).sum();
    assert!(stored + names as u64 <= bytes.len() as u64);
    for record in chunk.records.iter().take(MOST) {
        let _ = chunk.record(bytes, record);
    }
    let newest: BTreeMap<_, _> =
        chunk.records.iter().map(|record| (record.name.clone(), record.offset)).collect();
    let made = build(chunk.pack, std::slice::from_ref(&chunk)).expect("few records");
    let made = Snapshot::parse(made, Path::new("snapshot")).expect("what was built");
    assert_eq!(made.records(), newest.len());
    for (name, offset) in &newest {
        let found = made.find(name).expect("what was built is whole").expect("each name is there");
        assert_eq!(made.entry(found).expect("what was built is whole").offset, *offset);
    }
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

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let mut bytes = bytes.to_vec();
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
                FOLDER.with(|made| {
                    let made =
                        made.get_or_init(|| tempfile::tempdir_in("/dev/shm").expect("a folder in memory"));
                    folder(made.path(), &bytes);
                });
            }
        }
    }
});
