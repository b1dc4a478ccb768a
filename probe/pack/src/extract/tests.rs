#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
use crate::writer::{About, chunk_compressed};
use crate::{Disk, Id, SNAPSHOT, rebuild};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use tempfile::TempDir;

thread_local! {
    static THEN: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// A name was found to be one that may be made.
pub(super) fn is_checked() {
    if let Some(act) = THEN.take() {
        act();
    }
}

/// A folder with a pack of these records, compressed where that is worth it.
fn made(records: &[(&[u8], &[u8])]) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pack");
    fs::create_dir(&dir).unwrap();
    let id = Id::written(1, [0; 8]);
    let records: Vec<_> = records.iter().map(|(name, bytes)| (*name, *bytes, About::default())).collect();
    fs::write(dir.join(id.file_name()), chunk_compressed(id, Id([3; 16]), &records, Some(3)).unwrap())
        .unwrap();
    rebuild(&dir, false, &Disk, &mut |_, _| {}).unwrap();
    (root, dir)
}

/// The pack's owner had files made anywhere by who extracted it.
#[test]
fn a_name_that_is_changed_after_it_was_checked_is_made_as_it_was() {
    let (root, dir) = made(&[(b"aa/x", b"theirs")]);
    let opened = Pack::open(&dir).unwrap();
    let at = |name: &str| root.path().join(name);
    let snapshot = fs::File::options().read(true).write(true).open(dir.join(SNAPSHOT)).unwrap();
    let mut last = [0; 4];
    let names_at = snapshot.metadata().unwrap().len() - 4;
    snapshot.read_exact_at(&mut last, names_at).unwrap();
    assert_eq!(last, *b"aa/x");
    THEN.set(Some(Box::new(move || snapshot.write_all_at(b"../x", names_at).unwrap())));
    let extracted = extract(&opened, &[], &at("out"), &mut |sentence| panic!("{sentence}")).unwrap();
    assert!(opened.snapshot().bytes().ends_with(b"../x"));
    assert!(!at("x").exists());
    assert_eq!((extracted.files, fs::read(at("out/aa/x")).unwrap()), (1, b"theirs".to_vec()));
}

#[test]
fn no_part_of_a_name_climbs_where_it_is_made() {
    let root = tempfile::tempdir().unwrap();
    let into = Folder::make(&root.path().join("out")).unwrap();
    for name in [&b"../x"[..], b"a/../../x", b"a/./x", b"a//x", b"/x", b"..", b".", b"a/", b""] {
        assert_eq!(make(&into, name, &mut 0).map(drop), Err(Errno::INVAL), "{name:?}");
    }
    assert!(!root.path().join("x").exists());
    let mut folders = 0;
    make(&into, b"a/..b/x", &mut folders).unwrap();
    assert!(root.path().join("out/a/..b/x").exists());
    // The first was there already.
    assert_eq!(folders, 1);
}

/// 50 files without bytes had made 102,400 folders.
#[test]
fn a_few_files_do_not_make_thousands_of_folders() {
    let names: Vec<Vec<u8>> =
        (0..5).map(|number| format!("{number}/{}x", "a/".repeat(20)).into_bytes()).collect();
    let records: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_slice(), &b""[..])).collect();
    let (root, dir) = made(&records);
    let opened = Pack::open(&dir).unwrap();
    let extracted = |names: &[Vec<u8>], out: &str| {
        let bounds = Bounds::of(30, 0);
        within(bounds, &opened, names, &root.path().join(out), &mut |_| {})
    };
    let refused = extracted(&[], "out").unwrap_err().to_string();
    assert!(refused.contains("lie in more than 8 folders each"), "{refused}");
    assert_eq!(fs::read_dir(root.path().join("out")).unwrap().count(), 3);
    assert_eq!(extracted(&[b"4".to_vec()], "alone").unwrap().files, 1);
    // What is there already is not counted.
    assert_eq!(extracted(&names[3..], "alone").unwrap().asked, 2);
    assert_eq!(extract(&opened, &[], &root.path().join("all"), &mut |_| {}).unwrap().files, 5);
}

/// 92 KB had taken 2.7 GB of disk.
#[test]
fn zeros_are_written_as_holes() {
    let bytes = [vec![0; 8 << 20], b"end".to_vec()].concat();
    let (root, dir) = made(&[(b"a/end", &bytes), (b"a/plain", b"plain"), (b"a/zeros", &bytes[..8 << 20])]);
    let opened = Pack::open(&dir).unwrap();
    let out = root.path().join("out");
    // They take nothing of what frames may expand to, either.
    within(Bounds::of(1, 1 << 10), &opened, &[], &out, &mut |sentence| panic!("{sentence}")).unwrap();
    for (name, expected) in [("a/end", &bytes[..]), ("a/plain", b"plain"), ("a/zeros", &bytes[..8 << 20])] {
        let path = out.join(name);
        assert!(fs::read(&path).unwrap() == expected, "{name}");
        let on_disk = path.metadata().unwrap().blocks() * 512;
        assert!(on_disk <= 256 << 10, "{name} takes {on_disk} bytes");
    }
}

#[test]
fn few_bytes_do_not_expand_to_a_full_disk() {
    let bytes = vec![7; 1 << 20];
    let records: [(&[u8], &[u8]); 4] =
        [(b"a/0", &bytes), (b"a/1", &bytes), (b"a/2", &bytes), (b"a/3", &bytes)];
    let (root, dir) = made(&records);
    let opened = Pack::open(&dir).unwrap();
    let at = |name: &str| root.path().join(name);
    let refused =
        within(Bounds::of(1, 2 << 20), &opened, &[], &at("out"), &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("expand to more than 1024 times what is stored of them"), "{refused}");
    assert_eq!(fs::read_dir(at("out/a")).unwrap().count(), 3);
    let all = extract(&opened, &[], &at("all"), &mut |sentence| panic!("{sentence}")).unwrap();
    assert_eq!((all.files, all.bytes), (4, 4 << 20));
}
