//! Files that are stored as frames of zstd: what was packed comes back through every verb, and no frame takes more memory or gives other
//! bytes than it should.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use proptest::prelude::*;
use stallscope_pack::{
    About, Chunk, Disk, Id, MOST_EXPANDED_BYTES, Options, Pack, Packed, append, chunk_compressed, delete,
    expanded, extract, pack, purge, rebuild, seal, verify,
};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const OPTIONS: Options = Options { shuffle: Some(1), zstd: Some(3), chunk_bytes: 1000 };
const OTHER: &str = "does not expand to what was packed";

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

struct Set {
    dir: TempDir,
}

impl Set {
    /// Twenty texts and twenty files of noise, of two classes.
    fn new() -> Set {
        let set = Set { dir: tempfile::tempdir().unwrap() };
        for number in 0..20_u32 {
            set.put("source", &format!("text/{number:02}"), &text(number));
            set.put("source", &format!("noise/{number:02}"), &noise(number, 200));
        }
        set
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn put(&self, folder: &str, name: &str, bytes: &[u8]) {
        let path = self.path(folder).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn pack(&self, options: Options) -> Packed {
        pack(&self.path("source"), &self.path("pack"), options, &Disk, &mut |_| {}).unwrap()
    }

    fn open(&self) -> Pack {
        Pack::open(&self.path("pack")).unwrap()
    }

    fn faults(&self) -> Vec<String> {
        let verified = verify(&self.path("pack"), &mut |_, _| {}).unwrap();
        verified.faults.iter().map(ToString::to_string).collect()
    }
}

fn text(number: u32) -> Vec<u8> {
    format!("text {number}, again and again; ").repeat(30).into_bytes()
}

fn noise(seed: u32, bytes: u32) -> Vec<u8> {
    let words = (0..bytes / 4).map(|at| crc32c::crc32c(&[seed.to_le_bytes(), at.to_le_bytes()].concat()));
    words.flat_map(u32::to_le_bytes).collect()
}

/// What can be read, by name.
fn readable(pack: &Pack) -> Files {
    let entries = pack.snapshot().entries().map(Result::unwrap);
    entries.filter_map(|entry| Some((entry.name.to_vec(), pack.whole(&entry).ok()?))).collect()
}

fn files_below(root: &Path) -> Files {
    let mut found = Files::new();
    for folder in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            found.insert(name, fs::read(path).unwrap());
        }
    }
    found
}

/// Of each file by name: whether it is compressed, and how many bytes are stored of it.
fn stored(pack: &Pack) -> BTreeMap<Vec<u8>, (bool, u64)> {
    let entries = pack.snapshot().entries().map(Result::unwrap);
    entries.map(|entry| (entry.name.to_vec(), (entry.is_compressed(), entry.stored_bytes))).collect()
}

#[test]
fn what_is_worth_it_is_compressed_and_comes_back() {
    let set = Set::new();
    let packed = set.pack(OPTIONS);
    assert_eq!((packed.files, packed.compressed), (40, 20));
    let opened = set.open();
    let saved: u64 = opened
        .snapshot()
        .entries()
        .map(Result::unwrap)
        .filter(|entry| entry.is_compressed())
        .map(|entry| entry.bytes - entry.stored_bytes)
        .sum();
    assert!(packed.saved == saved && saved > 20 * 500, "{packed:?}");
    for (name, (is_compressed, _)) in stored(&opened) {
        assert_eq!(is_compressed, name.starts_with(b"text/"), "{name:?}");
    }
    let source = files_below(&set.path("source"));
    assert_eq!(readable(&opened), source);
    let extracted = extract(&opened, &[], &set.path("out"), &mut |sentence| panic!("{sentence}")).unwrap();
    let bytes: usize = source.values().map(Vec::len).sum();
    assert_eq!((extracted.files, extracted.bytes), (40, bytes as u64));
    assert_eq!(files_below(&set.path("out")), source);
    let verified = verify(&set.path("pack"), &mut |_, _| {}).unwrap();
    assert_eq!((verified.records, verified.bytes, verified.faults), (40, bytes as u64, vec![]));
    // A part of one, from anywhere.
    let number = opened.snapshot().find(b"text/07").unwrap().unwrap();
    let (entry, whole) = (opened.snapshot().entry(number).unwrap(), text(7));
    let mut part = [0; 10];
    for from in [0, 5, whole.len() - 10] {
        opened.read_part(&entry, &mut part, from as u64).unwrap();
        assert_eq!(part, whole[from..from + 10]);
    }
    let cut = opened.read_part(&entry, &mut part, whole.len() as u64 - 9).unwrap_err().to_string();
    assert!(cut.ends_with("its record text/07 is cut"), "{cut}");
}

#[test]
fn a_pack_may_have_both_and_keeps_what_it_has() {
    let set = Set::new();
    set.pack(OPTIONS);
    let before = stored(&set.open());
    // Neither a run without it nor one at another level packs anew what is there.
    for zstd in [None, Some(19)] {
        assert_eq!(set.pack(Options { zstd, ..OPTIONS }).kept, 40);
    }
    (20..30).for_each(|number| set.put("more", &format!("text/{number}"), &text(number)));
    let into = set.path("pack");
    let plain = Options { zstd: None, ..OPTIONS };
    append(&set.path("more"), &into, plain, false, &Disk, &mut |_| {}).unwrap();
    let names: Vec<Vec<u8>> = (0..40)
        .filter(|number| number % 3 > 0)
        .map(|n| format!("text/{n:02}"))
        .map(String::into_bytes)
        .collect();
    delete(&into, &names, &Disk, &mut |_| {}).unwrap();
    let purged =
        purge(&into, 1.0, 1000, &Disk, &mut |sentence| panic!("{sentence}"), &mut |_, _| {}).unwrap();
    assert!(purged.chunks > 0 && purged.files > 0, "{purged:?}");
    let opened = set.open();
    let mut source = files_below(&set.path("source"));
    source.append(&mut files_below(&set.path("more")));
    source.retain(|name, _| !names.contains(name));
    assert_eq!(readable(&opened), source);
    let now = stored(&opened);
    assert!(
        before.iter().filter(|(name, _)| now.contains_key(*name)).all(|(name, stored)| now[name] == *stored)
    );
    assert_eq!(now[&b"text/27"[..]], (false, text(27).len() as u64));
    let snapshot = fs::read(into.join("snapshot")).unwrap();
    rebuild(&into, false, &Disk, &mut |_, _| {}).unwrap();
    assert_eq!(fs::read(into.join("snapshot")).unwrap(), snapshot);
    assert_eq!(set.faults(), Vec::<String>::new());
}

#[test]
fn large_files_are_compressed_up_to_a_size() {
    let set = Set::new();
    // Of more than a chunk each; the last one is of holes.
    set.put("source", "text/large", &text(1).repeat(500));
    set.put("source", "noise/large", &noise(1, 8000));
    set.put("source", "text/huge", b"");
    let huge = fs::File::options().write(true).open(set.path("source/text/huge")).unwrap();
    huge.set_len(MOST_EXPANDED_BYTES + 1).unwrap();
    set.put("source", "text/most", b"");
    let most = fs::File::options().write(true).open(set.path("source/text/most")).unwrap();
    most.set_len(MOST_EXPANDED_BYTES).unwrap();
    set.pack(OPTIONS);
    let opened = set.open();
    let now = stored(&opened);
    assert!(now[&b"text/large"[..]].0 && now[&b"text/most"[..]].0);
    assert_eq!(now[&b"noise/large"[..]], (false, 8000));
    assert_eq!(now[&b"text/huge"[..]], (false, MOST_EXPANDED_BYTES + 1));
    assert_eq!(set.faults(), Vec::<String>::new());
    let read = |name: &[u8]| {
        let entry = opened.snapshot().entry(opened.snapshot().find(name).unwrap().unwrap()).unwrap();
        (opened.whole(&entry).unwrap(), entry.chunk)
    };
    assert_eq!(read(b"text/large").0, text(1).repeat(500));
    assert!(read(b"text/most").0.iter().all(|byte| *byte == 0));
    // What stays as large as it is has a chunk of its own.
    let (bytes, chunk) = read(b"noise/large");
    assert_eq!(bytes, noise(1, 8000));
    let entries = opened.snapshot().entries().map(Result::unwrap);
    assert_eq!(entries.filter(|entry| entry.chunk == chunk).count(), 1);
}

#[test]
fn a_flipped_bit_is_found_and_the_rest_is_read() {
    let set = Set::new();
    set.pack(OPTIONS);
    let (path, bytes, at) = {
        let opened = set.open();
        let entry = opened.snapshot().entry(opened.snapshot().find(b"text/05").unwrap().unwrap()).unwrap();
        let path = set.path("pack").join(opened.snapshot().chunk(entry.chunk).unwrap().id.file_name());
        let bytes = fs::read(&path).unwrap();
        (path, bytes, (entry.offset + entry.stored_bytes / 2) as usize)
    };
    let mut flipped = bytes;
    flipped[at] ^= 4;
    fs::write(&path, flipped).unwrap();
    let faults = set.faults();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].ends_with("record text/05 does not hold what was packed"), "{faults:?}");
    let mut expected = files_below(&set.path("source"));
    expected.remove(&b"text/05"[..]);
    assert_eq!(readable(&set.open()), expected);
}

/// A pack of two compressed texts; and its chunk, to be forged.
fn forged(forge: impl FnOnce(&mut Vec<u8>, usize)) -> Set {
    let set = Set { dir: tempfile::tempdir().unwrap() };
    let id = Id::written(1, [0; 8]);
    let (one, two) = (text(1), text(2));
    let records: [(&[u8], &[u8], About); 2] =
        [(b"a/1", &one, About::default()), (b"a/2", &two, About::default())];
    let mut bytes = chunk_compressed(id, Id([3; 16]), &records, Some(3)).unwrap();
    let footer_at = bytes.len() - 64;
    let index_at = u64::from_le_bytes(bytes[footer_at..footer_at + 8].try_into().unwrap()) as usize;
    forge(&mut bytes, index_at);
    seal(&mut bytes);
    fs::create_dir(set.path("pack")).unwrap();
    fs::write(set.path("pack").join(id.file_name()), bytes).unwrap();
    set
}

fn rebuilt(set: &Set) -> Result<(), String> {
    let rebuilt = rebuild(&set.path("pack"), false, &Disk, &mut |_, _| {});
    rebuilt.map(drop).map_err(|error| error.to_string())
}

#[test]
fn lengths_that_no_record_may_have_are_refused() {
    // More than is ever expanded, and as many as are stored, or fewer.
    for bytes in [MOST_EXPANDED_BYTES + 1, u64::MAX, 0, 20] {
        let set = forged(|chunk, index_at| {
            chunk[index_at + 16..index_at + 24].copy_from_slice(&bytes.to_le_bytes());
        });
        let refused = rebuilt(&set).unwrap_err();
        assert!(refused.contains("entry 0 is no record"), "{bytes}: {refused}");
    }
    // And what a record may have where its frame says otherwise.
    for bytes in [MOST_EXPANDED_BYTES, text(1).len() as u64 - 1, text(1).len() as u64 + 1] {
        let set = forged(|chunk, index_at| {
            chunk[index_at + 16..index_at + 24].copy_from_slice(&bytes.to_le_bytes());
        });
        rebuilt(&set).unwrap();
        let faults = set.faults();
        assert!(faults.len() == 1 && faults[0].ends_with(&format!("record a/1 {OTHER}")), "{faults:?}");
        let mut sentences = Vec::new();
        let opened = set.open();
        let extracted = extract(&opened, &[], &set.path("out"), &mut |one| sentences.push(one.to_owned()));
        assert_eq!(extracted.unwrap().files, 1);
        assert!(
            sentences.len() == 1 && sentences[0].ends_with(&format!("its record a/1 {OTHER}")),
            "{sentences:?}"
        );
        assert_eq!(files_below(&set.path("out")), Files::from([(b"a/2".to_vec(), text(2))]));
    }
}

/// As a program that knows no other codec than 0 refuses those of codec 1.
#[test]
fn a_codec_that_is_not_known_is_refused_in_a_sentence() {
    let set = forged(|chunk, index_at| chunk[index_at + 42] = 2);
    rebuilt(&set).unwrap();
    const UNKNOWN: &str = "a/1 is stored in a way that this program does not know";
    let faults = set.faults();
    assert!(faults.len() == 1 && faults[0].ends_with(UNKNOWN), "{faults:?}");
    let opened = set.open();
    let entry = opened.snapshot().entry(0).unwrap();
    for refused in [
        opened.size_of(&entry).map(drop),
        opened.whole(&entry).map(drop),
        opened.read(&entry, &mut vec![0; entry.bytes as usize]),
        opened.read_part(&entry, &mut [0], 0),
        opened.stream(&entry, &mut |_| Ok(())),
    ] {
        assert!(refused.unwrap_err().to_string().ends_with(UNKNOWN));
    }
    assert_eq!(readable(&opened), Files::from([(b"a/2".to_vec(), text(2))]));
    // Nor is it written anew.
    delete(&set.path("pack"), &[b"a/2".to_vec()], &Disk, &mut |_| {}).unwrap();
    let mut sentences = Vec::new();
    purge(&set.path("pack"), 1.0, 1000, &Disk, &mut |one| sentences.push(one.to_owned()), &mut |_, _| {})
        .unwrap();
    assert!(sentences.len() == 1 && sentences[0].ends_with(UNKNOWN), "{sentences:?}");
}

proptest! {
    /// Whatever a frame is: as many bytes as were to be, or a refusal.
    #[test]
    fn a_forged_frame_is_refused_or_has_its_bytes(
        number in any::<u32>(),
        flips in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<u16>()),
    ) {
        let set = forged(|chunk, index_at| {
            let stored = u64::from_le_bytes(chunk[index_at + 8..index_at + 16].try_into().unwrap()) as usize;
            let frame = &mut chunk[64..64 + stored];
            for (at, with) in &flips {
                frame[usize::from(*at) % stored] ^= with;
            }
            let crc = crc32c::crc32c(frame);
            let cut = cut.map_or(stored, |cut| usize::from(cut) % stored);
            if let Ok(bytes) = expanded(&frame[..cut], text(1).len() as u64) {
                assert_eq!(bytes.len(), text(1).len());
            }
            if let Ok(bytes) = expanded(&frame[..cut], u64::from(number)) {
                assert_eq!(bytes.len() as u64, u64::from(number));
            }
            chunk[index_at + 32..index_at + 36].copy_from_slice(&crc.to_le_bytes());
        });
        rebuilt(&set).unwrap();
        let found = readable(&set.open());
        prop_assert!(found.get(&b"a/1"[..]).is_none_or(|bytes| bytes.len() == text(1).len()));
        prop_assert_eq!(found.get(&b"a/2"[..]), Some(&text(2)));
        prop_assert_eq!(set.faults().len(), usize::from(!found.contains_key(&b"a/1"[..])));
    }
}

#[test]
fn a_chunk_gives_what_is_stored_in_it() {
    let (id, noise, text) = (Id::written(1, [0; 8]), noise(1, 400), text(1));
    let records: [(&[u8], &[u8], About); 3] =
        [(b"a", &noise, About::default()), (b"b", &text, About::default()), (b"c", b"", About::default())];
    let bytes = chunk_compressed(id, id, &records, Some(19)).unwrap();
    let chunk = Chunk::read(bytes.as_slice(), Path::new("x.chunk")).unwrap();
    let codecs: Vec<u8> = chunk.records.iter().map(|record| record.codec).collect();
    assert_eq!(codecs, [0, 1, 0]);
    for (record, (_, expected, _)) in chunk.records.iter().zip(records) {
        assert_eq!(chunk.record(bytes.as_slice(), record).as_deref(), Ok(expected));
    }
}
