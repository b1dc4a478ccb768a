//! Files are added to a pack and taken out of it: all at once or not at all, whatever fails and when.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod failing;

use failing::{Cut, Failing};
use stallscope_pack::{
    DELETED, Deleted, Disk, Error, Id, Notice, Options, Pack, Packed, Result, Storage, append, delete, pack,
    purge, rebuild, verify,
};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const CHUNK_BYTES: u64 = 400;
const OPTIONS: Options = Options { shuffle: Some(1), zstd: None, chunk_bytes: CHUNK_BYTES };

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// A folder of these files, each of 100 bytes of its number.
fn source(numbers: std::ops::Range<u8>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for number in numbers {
        let path = dir.path().join(name(number));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![number; 100]).unwrap();
    }
    dir
}

fn name(number: u8) -> String {
    format!("{}/{number:02}", ["cat", "dog"][usize::from(number % 2)])
}

fn bytes_of(numbers: impl Iterator<Item = u8>) -> Files {
    numbers.map(|number| (name(number).into_bytes(), vec![number; 100])).collect()
}

/// A pack of the first twenty.
fn packed() -> (TempDir, PathBuf) {
    let (source, dir) = (source(0..20), tempfile::tempdir().unwrap());
    let into = dir.path().join("pack");
    pack(source.path(), &into, OPTIONS, &Disk, &mut |_| {}).unwrap();
    (dir, into)
}

fn without(into: &Path, names: &[&str]) -> std::result::Result<stallscope_pack::Gone, String> {
    let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    delete(into, &names, &Disk, &mut |_| {}).map_err(|error| error.to_string())
}

fn purged(into: &Path, least_live: f64) -> stallscope_pack::Purged {
    purge(into, least_live, CHUNK_BYTES, &Disk, &mut |sentence| panic!("{sentence}"), &mut |_, _| {}).unwrap()
}

fn with(source: &Path, into: &Path, replace: bool) -> (Packed, Vec<String>) {
    let mut sentences = Vec::new();
    let packed = append(source, into, OPTIONS, replace, &Disk, &mut |notice| {
        if let Notice::Problem(sentence) = notice {
            sentences.push(sentence.to_owned());
        }
    });
    (packed.unwrap(), sentences)
}

fn read_all(pack: &Pack) -> Result<Files> {
    let mut found = Files::new();
    for number in 0..pack.snapshot().records() {
        let entry = pack.snapshot().entry(number)?;
        let mut bytes = vec![0; pack.size_of(&entry)?];
        pack.read(&entry, &mut bytes)?;
        found.insert(entry.name.to_vec(), bytes);
    }
    Ok(found)
}

fn readable(dir: &Path) -> Files {
    read_all(&Pack::open(dir).unwrap()).unwrap()
}

fn sentences(dir: &Path) -> Vec<String> {
    verify(dir, &mut |_, _| {}).unwrap().faults.iter().map(ToString::to_string).collect()
}

fn chunk_names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names
        .filter(|name| Id::of_file_name(name.as_bytes()).is_some())
        .map(|name| name.into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn deleted_files_are_seen_no_more_and_the_version_is_another_one() {
    let (_dir, into) = packed();
    let before = Pack::open(&into).unwrap();
    let gone = without(&into, &["cat/04", "dog/07"]).unwrap();
    assert_eq!((gone.files, gone.bytes, gone.left, gone.problems), (2, 200, 18, 0));
    let left = bytes_of((0..20).filter(|number| ![4, 7].contains(number)));
    assert_eq!(readable(&into), left);
    let pack = Pack::open(&into).unwrap();
    assert_ne!(pack.snapshot().version(), before.snapshot().version());
    assert_eq!((pack.other_deletions(), pack.is_stale(), pack.newer().len()), (None, None, 0));
    assert_eq!(pack.snapshot().find(b"cat/04").unwrap(), None);
    // Labels and numbers of the others stay in order, and what has the pack open reads what it opened.
    assert_eq!(pack.snapshot().entry(9).unwrap().label, Some(1));
    assert_eq!(read_all(&before).unwrap(), bytes_of(0..20));
    assert_eq!(sentences(&into), Vec::<String>::new());
    // Once more is no fault, and changes nothing.
    let again = without(&into, &["cat/04", "dog/07"]).unwrap();
    assert_eq!((again.files, again.left, again.problems), (0, 18, 0));
    assert_eq!(Pack::open(&into).unwrap().snapshot().version(), pack.snapshot().version());
    // A folder with all that is in it; the last class moves no other.
    assert_eq!(without(&into, &["dog/"]).unwrap().files, 9);
    assert_eq!(readable(&into).len(), 9);
}

#[test]
fn a_name_that_is_not_there_has_a_sentence_and_a_class_that_moves_others_is_refused() {
    let (_dir, into) = packed();
    let mut heard = Vec::new();
    let names = [b"bird".to_vec(), b"cat/00".to_vec(), b"cat/0".to_vec()];
    let gone = delete(&into, &names, &Disk, &mut |sentence| heard.push(sentence.to_owned())).unwrap();
    assert_eq!((gone.files, gone.problems), (1, 2));
    assert!(heard[0].starts_with("bird is not in ") && heard[1].starts_with("cat/0 is not in "), "{heard:?}");
    let version = Pack::open(&into).unwrap().snapshot().version();
    let refused = without(&into, &["cat"]).unwrap_err();
    assert!(
        refused.contains("cat would be left without a file, so that dog would get another label"),
        "{refused}"
    );
    assert_eq!(without(&into, &["bird"]).unwrap().files, 0);
    assert_eq!(Pack::open(&into).unwrap().snapshot().version(), version);
    let nowhere = without(&into.join("nowhere"), &["cat"]).unwrap_err();
    assert!(nowhere.contains("is no folder"), "{nowhere}");
}

#[test]
fn a_deleted_file_stays_deleted_until_it_is_packed_again() {
    let (_dir, into) = packed();
    let source = source(0..20);
    // Two records of one name: the older one must not come back.
    fs::write(source.path().join(name(3)), b"another").unwrap();
    pack(source.path(), &into, OPTIONS, &Disk, &mut |_| {}).unwrap();
    assert_eq!(readable(&into)[name(3).as_bytes()], b"another");
    without(&into, &[&name(3)]).unwrap();
    rebuild(&into, false, &Disk, &mut |_, _| {}).unwrap();
    assert!(!readable(&into).contains_key(name(3).as_bytes()));
    purged(&into, 1.0);
    rebuild(&into, false, &Disk, &mut |_, _| {}).unwrap();
    assert!(!readable(&into).contains_key(name(3).as_bytes()));
    pack(source.path(), &into, OPTIONS, &Disk, &mut |_| {}).unwrap();
    assert_eq!(readable(&into)[name(3).as_bytes()], b"another");
    assert_eq!(sentences(&into), Vec::<String>::new());
}

#[test]
fn files_of_another_folder_are_added() {
    let (_dir, into) = packed();
    let more = source(18..26);
    // The same file, another one of that name, and new ones.
    let time = fs::File::open(more.path().join(name(18))).unwrap().metadata().unwrap().modified().unwrap();
    let mtime_ns = time.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    let (packed, heard) = with(more.path(), &into, false);
    assert_eq!((packed.files, packed.kept, packed.problems), (6, 0, 2), "{heard:?}");
    assert!(heard.iter().all(|sentence| sentence.ends_with("--replace packs it in its place")), "{heard:?}");
    assert_eq!(readable(&into), bytes_of(0..26));
    let (packed, _) = with(more.path(), &into, true);
    assert_eq!((packed.files, packed.kept, packed.changed), (2, 6, 2));
    let pack = Pack::open(&into).unwrap();
    let entry = pack.snapshot().entry(pack.snapshot().find(name(18).as_bytes()).unwrap().unwrap()).unwrap();
    assert_eq!((entry.mtime_ns, entry.label), (mtime_ns, Some(0)));
    // A class that moves others, no pack, and a pack within what is added.
    fs::create_dir(more.path().join("ant")).unwrap();
    fs::write(more.path().join("ant/1"), b"1").unwrap();
    let refused = append(more.path(), &into, OPTIONS, false, &Disk, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("cat would get another label"), "{refused}");
    let refused =
        append(more.path(), more.path(), OPTIONS, false, &Disk, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("a source is never written to"), "{refused}");
    let empty = tempfile::tempdir().unwrap();
    let refused =
        append(more.path(), empty.path(), OPTIONS, false, &Disk, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("is no pack"), "{refused}");
}

#[test]
fn purging_gives_back_the_bytes_and_readers_keep_what_they_opened_or_hear_of_it() {
    let (_dir, into) = packed();
    let before = Pack::open(&into).unwrap();
    // One chunk is opened by it, the others are not.
    let first = before.snapshot().entry(0).unwrap();
    before.read(&first, &mut [0; 100]).unwrap();
    let gone: Vec<String> = (2..16).map(name).collect();
    without(&into, &gone.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let size = |dir: &Path| {
        chunk_names(dir).iter().map(|name| dir.join(name).metadata().unwrap().len()).sum::<u64>()
    };
    let (files, bytes) = (readable(&into), size(&into));
    let done = purged(&into, 1.0);
    assert_eq!(done.freed, bytes - size(&into));
    assert!(done.freed >= 1400 && done.files <= 6, "{done:?}");
    assert_eq!(readable(&into), files);
    assert_eq!(sentences(&into), Vec::<String>::new());
    assert!(!into.join(DELETED).exists(), "all that was deleted is gone");
    // Nothing is left to do.
    assert_eq!(purged(&into, 1.0).chunks, 0);
    let mut gone_too = 0;
    for number in 0..20 {
        let entry = before.snapshot().entry(number).unwrap();
        let is_there = into.join(before.snapshot().chunk(entry.chunk).unwrap().id.file_name()).exists();
        match before.read(&entry, &mut [0; 100]) {
            Ok(()) => assert!(is_there || entry.chunk == first.chunk),
            Err(error) => {
                assert!(!is_there && entry.chunk != first.chunk);
                assert!(error.to_string().contains("in another state than when it was opened"), "{error}");
                gone_too += 1;
            }
        }
    }
    assert!(gone_too > 0);
}

#[test]
fn only_chunks_of_which_little_counts_are_written_anew() {
    let (_dir, into) = packed();
    let pack = Pack::open(&into).unwrap();
    let of_chunk = |chunk: usize| -> Vec<String> {
        let entries = (0..20).map(|number| pack.snapshot().entry(number).unwrap());
        let entries = entries.filter(|entry| entry.chunk == chunk);
        entries.map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()).collect()
    };
    let (one, two, chunks) = (of_chunk(0), of_chunk(1), chunk_names(&into));
    assert_eq!((one.len(), two.len()), (4, 4));
    let going = [&one[0], &one[1], &one[2], &two[0]].map(String::as_str);
    without(&into, &going).unwrap();
    let done = purged(&into, 0.5);
    assert_eq!((done.chunks, done.files), (1, 1));
    let left = chunk_names(&into);
    assert!(!left.contains(&chunks[0]) && left.contains(&chunks[1]), "{left:?}");
    assert!(into.join(DELETED).exists());
    assert_eq!((readable(&into).len(), sentences(&into).len()), (16, 0));
    // None of another chunk: it goes, and nothing is written.
    without(&into, &two[1..].iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let done = purged(&into, 0.0);
    assert_eq!((done.chunks, done.files), (1, 0));
}

#[test]
fn a_damaged_record_keeps_its_chunk_from_being_purged() {
    let (_dir, into) = packed();
    let pack = Pack::open(&into).unwrap();
    let entries: Vec<_> = (0..20).map(|number| pack.snapshot().entry(number).unwrap()).collect();
    let first = &entries[0];
    let beside = entries[1..].iter().find(|entry| entry.chunk == first.chunk).unwrap();
    without(&into, &[std::str::from_utf8(first.name).unwrap()]).unwrap();
    let path = into.join(pack.snapshot().chunk(first.chunk).unwrap().id.file_name());
    let mut bytes = fs::read(&path).unwrap();
    bytes[beside.offset as usize + 5] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let mut heard = Vec::new();
    let say = &mut |sentence: &str| heard.push(sentence.to_owned());
    let done = purge(&into, 1.0, CHUNK_BYTES, &Disk, say, &mut |_, _| {}).unwrap();
    assert_eq!((done.chunks, done.problems), (0, 1));
    assert!(heard[0].contains("stays as it is: its record"), "{heard:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_list_of_deletions_that_is_damaged_lost_or_of_another_pack_is_noticed() {
    let (_dir, into) = packed();
    let (_other_dir, other) = packed();
    without(&into, &["cat/00"]).unwrap();
    without(&other, &["cat/02"]).unwrap();
    let path = into.join(DELETED);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        assert!(Deleted::parse(&bytes, &path).is_err(), "byte {at}");
        assert!(Deleted::parse(&whole[..at], &path).is_err(), "cut at {at}");
    }
    let files = readable(&into);
    let is_noticed = |what: &str| {
        let pack = Pack::open(&into).unwrap();
        assert!(pack.other_deletions().is_some(), "{what}");
        // What the snapshot has is read all the same.
        assert_eq!(read_all(&pack).unwrap(), files, "{what}");
        assert_eq!(sentences(&into).len(), 1, "{what}: {:?}", sentences(&into));
    };
    fs::write(&path, &whole[..70]).unwrap();
    is_noticed("cut");
    let refused = without(&into, &["cat/02"]).unwrap_err();
    assert!(refused.contains("deleted is damaged"), "{refused}");
    let refused = rebuild(&into, false, &Disk, &mut |_, _| {}).unwrap_err().to_string();
    assert!(
        refused.starts_with("which files were deleted cannot be read, and nothing was changed"),
        "{refused}"
    );
    fs::copy(other.join(DELETED), &path).unwrap();
    assert!(sentences(&into)[0].contains("it is of another pack"), "{:?}", sentences(&into));
    fs::remove_file(&path).unwrap();
    is_noticed("lost");
    fs::write(&path, &whole[..70]).unwrap();
    let rebuilt = rebuild(&into, true, &Disk, &mut |_, _| {}).unwrap();
    assert_eq!(rebuilt.set_aside.len(), 1);
    assert!(into.join("deleted.damaged").exists());
    assert_eq!(readable(&into), bytes_of(0..20));
    assert_eq!(sentences(&into), Vec::<String>::new());
}

#[test]
fn what_an_interrupted_run_left_is_not_shown_by_another_change() {
    let (_dir, into) = packed();
    let more = source(20..30);
    // Enough for some chunks, and none of the snapshot.
    let before = chunk_names(&into).len();
    for steps in 0.. {
        let outcome = append(more.path(), &into, OPTIONS, false, &Failing::after(steps), &mut |_| {});
        assert!(outcome.is_err());
        if chunk_names(&into).len() > before {
            break;
        }
    }
    for refused in [
        without(&into, &["cat/00"]).unwrap_err(),
        purge(&into, 1.0, CHUNK_BYTES, &Disk, &mut |_| {}, &mut |_, _| {}).unwrap_err().to_string(),
        append(source(40..44).path(), &into, OPTIONS, false, &Disk, &mut |_| {}).unwrap_err().to_string(),
    ] {
        assert!(refused.contains("has files that its snapshot does not show"), "{refused}");
    }
    assert_eq!(readable(&into), bytes_of(0..20));
    let (packed, _) = with(more.path(), &into, false);
    assert_eq!(packed.files + packed.kept, 10);
    assert!(packed.kept > 0);
    assert_eq!(readable(&into), bytes_of(0..30));
}

fn copied(pack: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(pack).unwrap().map(|entry| entry.unwrap()) {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Changes a pack with a storage that fails at each operation in turn. Whatever a power cut takes as well, the pack is what it
/// was or what it is to be, for readers and for who makes its snapshot anew; and the next run makes it whole.
fn is_all_or_nothing(
    prepare: &dyn Fn(&Path),
    change: &dyn Fn(&Path, &dyn Storage) -> Result<()>,
    left: impl Iterator<Item = u8>,
    shows_parts: bool,
) {
    let after = bytes_of(left);
    for cut in [Cut::Nothing, Cut::All, Cut::Chunks, Cut::Snapshot] {
        let mut failures = 0;
        for steps in 0.. {
            let (_dir, into) = packed();
            prepare(&into);
            let before = readable(&into);
            let storage = Failing::after(steps);
            let outcome = change(&into, &storage);
            storage.cut(cut);
            let found = readable(&into);
            let what = format!("after {steps} operations, {cut:?}");
            match &outcome {
                Ok(()) => assert_eq!(found, after, "{what}"),
                Err(Error::Io { .. }) => assert!(found == before || found == after, "{what}"),
                Err(error) => panic!("{error}"),
            }
            if !shows_parts {
                let copy = copied(&into);
                rebuild(copy.path(), false, &Disk, &mut |_, _| {}).unwrap();
                let found = readable(copy.path());
                assert!(found == before || found == after, "rebuilt {what}");
            }
            change(&into, &Disk).unwrap();
            assert_eq!(readable(&into), after, "{what}");
            assert_eq!(sentences(&into), Vec::<String>::new(), "{what}");
            if outcome.is_ok() {
                break;
            }
            failures += 1;
        }
        assert!(failures > 6, "{failures} operations failed");
    }
}

#[test]
fn a_deletion_that_fails_at_any_moment_is_whole_or_none() {
    let change = |into: &Path, storage: &dyn Storage| {
        let names: Vec<Vec<u8>> = (0..7).map(|number| name(number).into_bytes()).collect();
        delete(into, &names, storage, &mut |_| {}).map(drop)
    };
    is_all_or_nothing(&|_| {}, &change, 7..20, false);
}

#[test]
fn files_that_are_added_are_there_all_or_none() {
    let more = source(20..30);
    let change = |into: &Path, storage: &dyn Storage| {
        append(more.path(), into, OPTIONS, false, storage, &mut |_| {}).map(drop)
    };
    is_all_or_nothing(&|_| {}, &change, 0..30, true);
}

#[test]
fn a_purge_that_fails_at_any_moment_loses_nothing_and_brings_nothing_back() {
    let prepare = |into: &Path| {
        let names: Vec<String> = (0..13).map(name).collect();
        without(into, &names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    };
    let change = |into: &Path, storage: &dyn Storage| {
        purge(into, 1.0, CHUNK_BYTES, storage, &mut |sentence| panic!("{sentence}"), &mut |_, _| {}).map(drop)
    };
    is_all_or_nothing(&prepare, &change, 13..20, false);
}

/// A chunk of holes, 20 KB, had taken 1 GB of memory, and of disk.
#[test]
fn purging_takes_no_disk_for_zeros() {
    let (source, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (name, zeros) in [("live", 8 << 20), ("dead", 9 << 20)] {
        fs::write(source.path().join(name), [vec![0; zeros], vec![1; 100]].concat()).unwrap();
    }
    // Of records that have a chunk of their own, and of those that are gathered.
    for (number, chunk_bytes) in [1_u64 << 20, 32 << 20].into_iter().enumerate() {
        let into = root.path().join(number.to_string());
        let options = Options { chunk_bytes: 32 << 20, ..OPTIONS };
        pack(source.path(), &into, options, &Disk, &mut |_| {}).unwrap();
        without(&into, &["dead"]).unwrap();
        purge(&into, 1.0, chunk_bytes, &Disk, &mut |sentence| panic!("{sentence}"), &mut |_, _| {}).unwrap();
        let [chunk] = &chunk_names(&into)[..] else { panic!("one chunk is left") };
        let facts = fs::metadata(into.join(chunk)).unwrap();
        assert!(facts.len() > 8 << 20 && facts.blocks() * 512 < 1 << 20, "{facts:?}");
        assert_eq!(sentences(&into), Vec::<String>::new());
        assert_eq!(readable(&into)[&b"live"[..]].len(), (8 << 20) + 100);
    }
}
