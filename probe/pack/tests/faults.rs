//! What is damaged is named, and the rest can be read; a pack that could not be written to its end is what it was.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod failing;

use failing::{Cut, Failing};
use stallscope_pack::{Columns, Disk, Error, Id, Options, Origin, Pack, Verified, pack, rebuild, verify};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const OPTIONS: Options = Options { shuffle: Some(1), zstd: None, chunk_bytes: 400 };

fn source(files: u8) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..files {
        let class = dir.path().join(["cat", "dog"][usize::from(number % 2)]);
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("{number:02}")), vec![number; 100]).unwrap();
    }
    dir
}

fn packed() -> (TempDir, PathBuf) {
    let (source, dir) = (source(20), tempfile::tempdir().unwrap());
    let into = dir.path().join("pack");
    pack(source.path(), &into, OPTIONS, &Disk, &mut |_| {}).unwrap();
    (dir, into)
}

fn chunks(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| Id::of_file_name(path.file_name().unwrap().as_bytes()).is_some()).collect();
    files.sort();
    files
}

fn verified(dir: &Path) -> Verified {
    verify(dir, &mut |_, _| {}).unwrap()
}

fn sentences(dir: &Path) -> Vec<String> {
    verified(dir).faults.iter().map(ToString::to_string).collect()
}

/// What can be read of the pack, by name.
fn readable(dir: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let Ok(pack) = Pack::open(dir) else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for number in 0..pack.snapshot().records() {
        let Ok(entry) = pack.snapshot().entry(number) else { continue };
        let Ok(size) = pack.size_of(&entry) else { continue };
        let mut bytes = vec![0; size];
        if pack.read(&entry, &mut bytes).is_ok() {
            found.insert(entry.name.to_vec(), bytes);
        }
    }
    found
}

fn are_right(found: &BTreeMap<Vec<u8>, Vec<u8>>) {
    for (name, bytes) in found {
        let number: u8 = std::str::from_utf8(&name[4..]).unwrap().parse().unwrap();
        assert_eq!(*bytes, vec![number; 100]);
    }
}

#[test]
fn a_flipped_bit_of_a_record_is_named_and_the_others_are_read() {
    let (_dir, into) = packed();
    let path = &chunks(&into)[1];
    let mut bytes = fs::read(path).unwrap();
    bytes[64 + 150] ^= 4;
    fs::write(path, bytes).unwrap();
    let verified = verified(&into);
    assert_eq!((verified.records, verified.faults.len()), (19, 1));
    let fault = verified.faults[0].to_string();
    assert!(fault.contains("record ") && fault.ends_with("does not hold what was packed"), "{fault}");
    let found = readable(&into);
    assert_eq!(found.len(), 19);
    are_right(&found);
}

#[test]
fn a_cut_chunk_is_named_and_what_is_left_of_it_is_read_by_the_snapshot() {
    let (_dir, into) = packed();
    let path = chunks(&into)[2].clone();
    let bytes = fs::read(&path).unwrap();
    // Without the footer; then behind its second record.
    fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let found = sentences(&into);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("it is cut")
            && found[0].ends_with("4 of its 4 records can be read by the snapshot")
    );
    fs::write(&path, &bytes[..64 + 200]).unwrap();
    let verified = verified(&into);
    let found: Vec<String> = verified.faults.iter().map(ToString::to_string).collect();
    assert_eq!((verified.records, found.len()), (18, 3), "{found:?}");
    assert!(found[2].ends_with("2 of its 4 records can be read by the snapshot"), "{found:?}");
    are_right(&readable(&into));

    let refused = rebuild(&into, false, &Disk, &mut |_, _| {}).unwrap_err().to_string();
    assert!(refused.starts_with("1 of 5 chunks cannot be read, and nothing was changed"), "{refused}");
    let rebuilt = rebuild(&into, true, &Disk, &mut |_, _| {}).unwrap();
    assert_eq!((rebuilt.chunks, rebuilt.set_aside.len()), (4, 1));
    assert_eq!(sentences(&into), Vec::<String>::new());
    assert_eq!(readable(&into).len(), 16);
    // Its bytes are still there for who can save more of it.
    assert!(path.with_extension("chunk.damaged").exists());
}

#[test]
fn a_snapshot_of_another_state_or_data_set_is_noticed() {
    let (_dir, into) = packed();
    let (_other_dir, other) = packed();
    let own = fs::read(into.join("snapshot")).unwrap();
    fs::copy(other.join("snapshot"), into.join("snapshot")).unwrap();
    let pack = Pack::open(&into).unwrap();
    assert!(pack.is_stale().unwrap().contains("5 of its 5 chunks are not there"));
    let found = sentences(&into);
    assert!(found.iter().any(|fault| fault.ends_with("it is a chunk of another pack")), "{found:?}");
    assert!(
        found.iter().any(|fault| fault.ends_with("it is not there, and the snapshot has it")),
        "{found:?}"
    );

    // One that was there before the last chunk came, and one that has a chunk more.
    fs::write(into.join("snapshot"), &own).unwrap();
    let last = chunks(&into).pop().unwrap();
    let aside = into.parent().unwrap().join("aside");
    fs::rename(&last, &aside).unwrap();
    assert!(Pack::open(&into).unwrap().is_stale().unwrap().contains("1 of its 5 chunks are not there"));
    rebuild(&into, false, &Disk, &mut |_, _| {}).unwrap();
    assert!(Pack::open(&into).unwrap().is_stale().is_none());
    fs::rename(&aside, &last).unwrap();
    let pack = Pack::open(&into).unwrap();
    assert!(pack.is_stale().is_none());
    assert_eq!(pack.newer().len(), 1);
    assert!(sentences(&into)[0].contains("the snapshot does not have it"));
    // Of the chunks alone it is, byte for byte, what it was.
    rebuild(&into, false, &Disk, &mut |_, _| {}).unwrap();
    assert_eq!(fs::read(into.join("snapshot")).unwrap(), own);
}

#[test]
fn a_chunk_under_another_name_or_in_the_place_of_another_is_noticed() {
    let (_dir, into) = packed();
    let files = chunks(&into);
    fs::copy(&files[0], &files[1]).unwrap();
    let found = sentences(&into);
    assert!(found.iter().any(|fault| fault.contains("under another name")), "{found:?}");
    let found = readable(&into);
    assert_eq!(found.len(), 16);
    are_right(&found);
}

#[test]
fn whichever_operation_fails_the_last_good_state_is_read_and_the_next_run_goes_on() {
    fails_at_each_operation(Cut::Nothing);
}

#[test]
fn a_power_cut_at_any_operation_leaves_the_last_good_state() {
    fails_at_each_operation(Cut::All);
    fails_at_each_operation(Cut::Chunks);
    fails_at_each_operation(Cut::Snapshot);
}

fn fails_at_each_operation(cut: Cut) {
    let source = source(26);
    let all = readable_files(source.path());
    let later =
        |number: u8| source.path().join(["cat", "dog"][usize::from(number % 2)]).join(format!("{number:02}"));
    let mut failures = 0;
    for steps in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("pack");
        // A pack of the first twenty; the others come in the run that fails.
        (20..26).for_each(|number| fs::remove_file(later(number)).unwrap());
        pack(source.path(), &into, OPTIONS, &Disk, &mut |_| {}).unwrap();
        let (before, version) = (readable(&into), Pack::open(&into).unwrap().snapshot().version());
        assert_eq!(before.len(), 20);
        (20..26).for_each(|number| fs::write(later(number), vec![number; 100]).unwrap());
        let storage = Failing::after(steps);
        let outcome = pack(source.path(), &into, OPTIONS, &storage, &mut |_| {});
        if outcome.is_ok() {
            // Nothing is left to lose.
            storage.cut(cut);
            assert_eq!(readable(&into), all);
            break;
        }
        failures += 1;
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        storage.cut(cut);
        let after = readable(&into);
        are_right(&after);
        // The old state or, where only the last sync failed, the new one.
        let is_old = Pack::open(&into).unwrap().snapshot().version() == version;
        assert_eq!(after, if is_old { before } else { all.clone() }, "after {steps} operations, {cut:?}");
        let continued = pack(source.path(), &into, OPTIONS, &Disk, &mut |_| {}).unwrap();
        assert_eq!(continued.files + continued.kept, 26);
        assert_eq!(readable(&into), all);
        assert_eq!(sentences(&into), Vec::<String>::new());
    }
    assert!(failures > 10, "{failures} operations failed");
}

fn readable_files(dir: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    for class in ["cat", "dog"] {
        for entry in fs::read_dir(dir.join(class)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().as_os_str().as_bytes().to_vec();
            found.insert(name, fs::read(&path).unwrap());
        }
    }
    found
}

/// What is expanded of a table lies outside of what a pack has, and so does not count for it, whatever fails.
#[test]
fn packing_a_table_that_fails_at_any_step_goes_on() {
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables");
    let paths = [0, 1].map(|shard| tables.join(format!("train-{shard:05}-of-00002.parquet")));
    let origin = Origin::Tables { paths: &paths, columns: Columns::default() };
    let dir = tempfile::tempdir().unwrap();
    pack(origin, &dir.path().join("all"), OPTIONS, &Disk, &mut |_| {}).unwrap();
    let all = readable(&dir.path().join("all"));
    assert_eq!(all.len(), 20);
    let (mut failures, mut kept) = (0, 0);
    for steps in 0.. {
        let into = dir.path().join(steps.to_string());
        let outcome = pack(origin, &into, OPTIONS, &Failing::after(steps), &mut |_| {});
        if outcome.is_ok() {
            break;
        }
        failures += 1;
        let continued = pack(origin, &into, OPTIONS, &Disk, &mut |_| {}).unwrap();
        assert_eq!(continued.files + continued.kept, 20);
        kept += continued.kept;
        assert_eq!(readable(&into), all, "after {steps} operations");
        assert_eq!(sentences(&into), Vec::<String>::new());
    }
    assert!(failures > 10 && kept > 0, "{failures} operations failed, {kept} rows were kept");
}
