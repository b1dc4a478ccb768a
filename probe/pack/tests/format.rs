//! The format: any names and bytes come back; what is damaged is an error or right, never a panic, never other bytes.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use proptest::prelude::*;
use stallscope_pack::{
    About, Chunk, DELETED, Deleted, Disk, Id, SNAPSHOT, Snapshot, build, chunk_compressed, chunk_of, compare,
    delete, fault_of, seal, seal_deleted, seal_snapshot,
};
use std::collections::BTreeMap;
use std::path::Path;

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

const PACK: Id = Id([5; 16]);

fn id(number: u64) -> Id {
    Id::written(number, [1; 8])
}

fn of_files(files: &Files, chunks: usize) -> Vec<Vec<u8>> {
    compressed(files, chunks, None)
}

fn compressed(files: &Files, chunks: usize, level: Option<i32>) -> Vec<Vec<u8>> {
    let all: Vec<(&[u8], &[u8], About)> = files
        .iter()
        .enumerate()
        .map(|(at, (name, bytes))| {
            let about = About { mtime_ns: at as i64 - 5, label: (at % 3 != 0).then_some(at as u32) };
            (name.as_slice(), bytes.as_slice(), about)
        })
        .collect();
    let size = all.len().div_ceil(chunks).max(1);
    let chunk = |(part, number)| chunk_compressed(id(number), PACK, part, level).unwrap();
    all.chunks(size).zip(1..).map(chunk).collect()
}

fn read(bytes: &[u8]) -> Result<Chunk, String> {
    Chunk::read(bytes, Path::new("x.chunk")).map_err(|error| error.to_string())
}

fn parse(bytes: Vec<u8>) -> Result<Snapshot, String> {
    Snapshot::parse(bytes, Path::new("snapshot")).map_err(|error| error.to_string())
}

fn files() -> impl Strategy<Value = Files> {
    files_of(prop::collection::vec(any::<u8>(), 0..300).boxed())
}

/// Files of which some are worth compressing.
fn alike_files() -> impl Strategy<Value = Files> {
    let noise = prop::collection::vec(any::<u8>(), 0..300);
    let some = (prop::collection::vec(any::<u8>(), 1..30), 1..200_usize);
    files_of(prop_oneof![noise, some.prop_map(|(some, times)| some.repeat(times))].boxed())
}

fn files_of(content: BoxedStrategy<Vec<u8>>) -> impl Strategy<Value = Files> {
    let part = prop::collection::vec(1..=255_u8, 1..12);
    let name = prop::collection::vec(part, 1..4).prop_map(|parts| parts.join(&b'/'));
    let name = name.prop_filter("a name that a file can have", |name| fault_of(name).is_none());
    prop::collection::btree_map(name, content, 1..20)
}

#[derive(Clone, Debug)]
enum Spoil {
    Flip(u16, u8),
    Cut(u16),
    Overwrite(u16, Vec<u8>),
    Grow(Vec<u8>),
}

fn spoil() -> impl Strategy<Value = Spoil> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..100);
    prop_oneof![
        4 => (any::<u16>(), 0..8_u8).prop_map(|(at, bit)| Spoil::Flip(at, bit)),
        1 => any::<u16>().prop_map(Spoil::Cut),
        2 => (any::<u16>(), bytes()).prop_map(|(at, bytes)| Spoil::Overwrite(at, bytes)),
        1 => bytes().prop_map(Spoil::Grow),
    ]
}

fn apply(spoil: &Spoil, bytes: &mut Vec<u8>) {
    let place = |at: u16, bytes: &[u8]| usize::from(at) * bytes.len() / 65_536;
    match spoil {
        Spoil::Flip(at, bit) => {
            let at = place(*at, bytes);
            bytes[at] ^= 1 << bit;
        }
        Spoil::Cut(at) => bytes.truncate(place(*at, bytes)),
        Spoil::Overwrite(at, with) => {
            let at = place(*at, bytes);
            let end = (at + with.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&with[..end - at]);
        }
        Spoil::Grow(with) => bytes.extend(with),
    }
}

/// What can be read of a chunk is of these files.
fn chunk_is_right(bytes: &[u8], files: &Files) -> Result<(), TestCaseError> {
    let Ok(chunk) = read(bytes) else { return Ok(()) };
    for record in &chunk.records {
        if let Ok(found) = chunk.record(bytes, record) {
            prop_assert_eq!(Some(&found), files.get(&record.name));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_names_and_bytes_come_back(files in alike_files(), chunks in 1..4_usize, level in prop_oneof![Just(None), Just(Some(1)), Just(Some(19))]) {
        let written = compressed(&files, chunks, level);
        let read: Vec<Chunk> = written.iter().map(|bytes| read(bytes).unwrap()).collect();
        let mut found = Files::new();
        for (chunk, bytes) in read.iter().zip(&written) {
            for record in &chunk.records {
                found.insert(record.name.clone(), chunk.record(bytes.as_slice(), record).unwrap());
            }
        }
        prop_assert_eq!(&found, &files);
        let snapshot = parse(build(PACK, &read, &Deleted::default()).unwrap()).unwrap();
        prop_assert_eq!(snapshot.records(), files.len());
        let mut names: Vec<&[u8]> = files.keys().map(Vec::as_slice).collect();
        names.sort_by(|one, other| compare(one, other));
        for (number, name) in names.into_iter().enumerate() {
            let entry = snapshot.entry(number).unwrap();
            prop_assert_eq!(entry.name, name);
            prop_assert_eq!(snapshot.find(name).unwrap(), Some(number));
            let record = read[entry.chunk].records.iter().find(|record| record.name == name).unwrap();
            prop_assert_eq!((entry.offset, entry.bytes, entry.mtime_ns), (record.offset, record.bytes, record.mtime_ns));
            prop_assert_eq!((entry.crc, entry.label, entry.codec, entry.stored_bytes), (record.crc, record.label, record.codec, record.stored_bytes));
        }
        prop_assert_eq!(snapshot.find(b"a name/that is not there, which is longer than any").unwrap(), None);
    }

    #[test]
    fn a_damaged_chunk_is_refused_or_right(files in alike_files(), level in prop_oneof![Just(None), Just(Some(3))], spoils in prop::collection::vec(spoil(), 1..4)) {
        let mut bytes = compressed(&files, 1, level).remove(0);
        spoils.iter().filter(|_| true).for_each(|spoil| if !bytes.is_empty() { apply(spoil, &mut bytes) });
        chunk_is_right(&bytes, &files)?;
    }

    #[test]
    fn a_damaged_snapshot_is_refused_or_right(files in files(), spoils in prop::collection::vec(spoil(), 1..4)) {
        let chunks: Vec<Chunk> = of_files(&files, 2).iter().map(|bytes| read(bytes).unwrap()).collect();
        let whole = build(PACK, &chunks, &Deleted::default()).unwrap();
        let right = parse(whole.clone()).unwrap();
        let mut bytes = whole;
        spoils.iter().for_each(|spoil| if !bytes.is_empty() { apply(spoil, &mut bytes) });
        let Ok(snapshot) = parse(bytes) else { return Ok(()) };
        prop_assert_eq!(snapshot.records(), right.records());
        for number in 0..right.records() {
            let entry = right.entry(number).unwrap();
            if let Ok(found) = snapshot.entry(number) {
                prop_assert_eq!(&found, &entry);
            }
            // Whatever became of the index by hash: found, or an error, never a name that is not there.
            if let Ok(found) = snapshot.find(entry.name) {
                prop_assert_eq!(found, Some(number));
            }
        }
    }

    /// Whatever is behind right checksums: no panic, and nothing beyond the bytes that are there.
    #[test]
    fn forged_ones_are_read_within_their_bounds(files in files(), spoils in prop::collection::vec(spoil(), 1..6)) {
        let written = of_files(&files, 2);
        let chunks: Vec<Chunk> = written.iter().map(|bytes| read(bytes).unwrap()).collect();
        let (mut chunk, mut snapshot) = (written[0].clone(), build(PACK, &chunks, &Deleted::default()).unwrap());
        for spoil in &spoils {
            for bytes in [&mut chunk, &mut snapshot] {
                if !bytes.is_empty() {
                    apply(spoil, bytes);
                }
            }
        }
        seal(&mut chunk);
        seal_snapshot(&mut snapshot);
        // A list of two chunks, of which it does not matter here whether they are there.
        let mut deleted = vec![0; 64];
        deleted[40] = 2;
        for number in 1..3 {
            deleted.extend(id(number).0);
            deleted.extend([12, 0, 0, 0, 0b1001, 0b10]);
        }
        seal_deleted(&mut deleted);
        prop_assert!(Deleted::parse(&deleted, Path::new("deleted")).unwrap().1.is(id(2), 9));
        spoils.iter().for_each(|spoil| if !deleted.is_empty() { apply(spoil, &mut deleted) });
        seal_deleted(&mut deleted);
        if let Ok((_, deleted)) = Deleted::parse(&deleted, Path::new("deleted")) {
            let _ = (0..100).map(|record| deleted.is(id(1), record)).chain([deleted.is(id(2), usize::MAX)]).count();
        }
        if let Ok(read) = read(&chunk) {
            for record in &read.records {
                let _ = read.record(chunk.as_slice(), record);
            }
        }
        if let Ok(snapshot) = parse(snapshot) {
            for number in 0..snapshot.records().min(100) {
                let _ = snapshot.entry(number).map(|entry| snapshot.find(entry.name));
            }
            let _ = snapshot.find(b"x");
        }
    }
}

#[test]
fn each_byte_that_is_flipped_is_noticed_or_does_not_matter() {
    let files: Files = [(b"a/1".to_vec(), b"one".to_vec()), (b"b/2".to_vec(), b"second".to_vec())].into();
    let whole = of_files(&files, 1).remove(0);
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        let noticed = read(&bytes).is_err_and(|error| error.contains("damaged"))
            || read(&bytes)
                .unwrap()
                .records
                .iter()
                .any(|record| read(&bytes).unwrap().record(bytes.as_slice(), record).is_err());
        assert!(noticed, "byte {at}");
    }
}

/// The `number`th bytes that docs/packs.md shows.
fn documented(number: usize) -> Vec<u8> {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/packs.md")).unwrap();
    let (block, _) = page.split("```hex\n").nth(number + 1).unwrap().split_once("\n```").unwrap();
    let hex = block
        .lines()
        .flat_map(|line| line.split_once("  ").map_or(line, |(bytes, _)| bytes).split_whitespace());
    hex.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn shown(bytes: &[u8]) -> String {
    let lines =
        bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>());
    lines.map(|line| line.join(" ")).collect::<Vec<_>>().join("\n")
}

/// The chunk of docs/packs.md, and its id.
fn chunk_of_the_page() -> (Id, Vec<u8>) {
    let id = Id::written(1_700_000_000_000_000_000, *b"\x01\x02\x03\x04\x05\x06\x07\x08");
    let records: [(&[u8], &[u8], About); 2] = [
        (b"cat/1.txt", b"meow", About { mtime_ns: 1_600_000_000_000_000_001, label: Some(0) }),
        (b"readme", b"", About { mtime_ns: -1, label: None }),
    ];
    (id, chunk_of(id, Id(*b"an example, a to"), &records).unwrap())
}

/// The bytes in docs/packs.md are those that are written.
#[test]
fn the_test_vector_is_what_is_written() {
    let (_, written) = chunk_of_the_page();
    assert_eq!(documented(0), written, "\n{}", shown(&written));
}

/// Another release of zstd may write other bytes for it.
#[test]
fn the_test_vector_of_a_compressed_record_is_read() {
    let bytes = documented(1);
    let chunk = read(&bytes).unwrap();
    let [record] = chunk.records.as_slice() else { panic!("{:?}", chunk.records) };
    assert_eq!(
        (&*record.name, record.codec, record.bytes, record.label),
        (&b"cat/2.txt"[..], 1, 64, Some(0))
    );
    assert_eq!(chunk.record(bytes.as_slice(), record).unwrap(), b"meow".repeat(16));
}

#[test]
fn the_test_vector_of_what_was_deleted_is_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (id, chunk) = chunk_of_the_page();
    std::fs::write(dir.path().join(id.file_name()), &chunk).unwrap();
    let snapshot = build(read(&chunk).unwrap().pack, &[read(&chunk).unwrap()], &Deleted::default()).unwrap();
    std::fs::write(dir.path().join(SNAPSHOT), snapshot).unwrap();
    let problem = &mut |sentence: &str| panic!("{sentence}");
    assert_eq!(delete(dir.path(), &[b"readme".to_vec()], &Disk, problem).unwrap().files, 1);
    let written = std::fs::read(dir.path().join(DELETED)).unwrap();
    assert_eq!(documented(2), written, "\n{}", shown(&written));
    let (_, deleted) = Deleted::parse(&documented(2), Path::new(DELETED)).unwrap();
    assert_eq!([0, 1].map(|record| deleted.is(id, record)), [false, true]);
}

#[test]
fn a_million_records_are_found_by_name_and_by_number() {
    const COUNT: u64 = 1_000_000;
    let record = |number: u64| stallscope_pack::Record {
        name: format!("class-{:03}/picture-{number:07}.jpg", number % 1000).into_bytes(),
        offset: number,
        stored_bytes: 1,
        bytes: 1,
        mtime_ns: 0,
        crc: number as u32,
        label: None,
        codec: 0,
    };
    let chunks: Vec<Chunk> = (0..10)
        .map(|chunk| Chunk {
            id: id(chunk),
            pack: PACK,
            bytes: u64::MAX,
            index_crc: 0,
            has_labels: false,
            records: (0..COUNT).filter(|number| number % 10 == chunk).map(record).collect(),
        })
        .collect();
    let bytes = build(PACK, &chunks, &Deleted::default()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let snapshot = Snapshot::open(file.path()).unwrap();
    assert_eq!(snapshot.records() as u64, COUNT);
    let mut last = Vec::new();
    for number in 0..COUNT as usize {
        let entry = snapshot.entry(number).unwrap();
        assert!(compare(&last, entry.name).is_lt());
        last = entry.name.to_vec();
        assert_eq!(entry.chunk as u64, entry.offset % 10);
    }
    for number in 0..COUNT {
        let record = record(number);
        let found = snapshot.entry(snapshot.find(&record.name).unwrap().unwrap()).unwrap();
        assert_eq!((found.name, found.crc), (record.name.as_slice(), record.crc));
    }
    for number in (COUNT..COUNT + 1000).map(record) {
        assert_eq!(snapshot.find(&number.name).unwrap(), None);
    }
}
