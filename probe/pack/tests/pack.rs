//! Packing a folder, and what of it is noticed, kept and refused.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use stallscope_pack::{Disk, Id, Notice, Options, Pack, Packed, extract, pack, rebuild, verify};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const SMALL: Options = Options { shuffle: Some(7), zstd: None, chunk_bytes: 1000 };

struct Set {
    dir: TempDir,
}

impl Set {
    fn new(files: &[(&[u8], &[u8])]) -> Set {
        let set = Set { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(set.source()).unwrap();
        files.iter().for_each(|(name, bytes)| set.put(name, bytes));
        set
    }

    /// Some pictures of two classes, of different sizes.
    fn many() -> Set {
        let set = Set::new(&[]);
        for number in 0..40_u8 {
            let class = if number % 2 == 0 { "cat" } else { "dog" };
            set.put(format!("{class}/{number:02}.jpg").as_bytes(), &vec![number; usize::from(number) * 9]);
        }
        set
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    fn made(&self) -> PathBuf {
        self.dir.path().join("made.pack")
    }

    fn put(&self, name: &[u8], bytes: &[u8]) {
        let path = self.source().join(OsStr::from_bytes(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn pack(&self) -> (Packed, Vec<String>) {
        self.pack_with(SMALL).unwrap()
    }

    fn pack_with(&self, options: Options) -> Result<(Packed, Vec<String>), String> {
        let mut sentences = Vec::new();
        let packed = pack(&self.source(), &self.made(), options, &Disk, &mut |notice| {
            if let Notice::Problem(sentence) = notice {
                sentences.push(sentence.to_owned());
            }
        });
        packed.map(|packed| (packed, sentences)).map_err(|error| error.to_string())
    }

    fn open(&self) -> Pack {
        Pack::open(&self.made()).unwrap()
    }
}

fn read(pack: &Pack, name: &[u8]) -> Vec<u8> {
    let number = pack.snapshot().find(name).unwrap().unwrap_or_else(|| panic!("{name:?} is there"));
    let entry = pack.snapshot().entry(number).unwrap();
    let mut bytes = vec![0; pack.size_of(&entry).unwrap()];
    pack.read(&entry, &mut bytes).unwrap();
    bytes
}

fn names(pack: &Pack) -> Vec<Vec<u8>> {
    (0..pack.snapshot().records())
        .map(|number| pack.snapshot().entry(number).unwrap().name.to_vec())
        .collect()
}

fn chunk_files(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| Id::of_file_name(path.file_name().unwrap().as_bytes()).is_some()).collect();
    files.sort();
    files
}

#[test]
fn what_is_packed_is_found_by_name_and_number_and_extracted() {
    let set = Set::many();
    let (packed, sentences) = set.pack();
    assert!(sentences.is_empty(), "{sentences:?}");
    assert_eq!((packed.files, packed.kept, packed.changed), (40, 0, 0));
    assert!(packed.chunks > 3, "{packed:?}");
    let pack = set.open();
    assert_eq!(pack.snapshot().records(), 40);
    // The order of names, however they lie in chunks; labels are those of sorted folders.
    let first = pack.snapshot().entry(0).unwrap();
    assert_eq!((first.name, first.label), (&b"cat/00.jpg"[..], Some(0)));
    let last = pack.snapshot().entry(39).unwrap();
    assert_eq!((last.name, last.label), (&b"dog/39.jpg"[..], Some(1)));
    for number in 0..40_u8 {
        let class = if number % 2 == 0 { "cat" } else { "dog" };
        let bytes = read(&pack, format!("{class}/{number:02}.jpg").as_bytes());
        assert_eq!(bytes, vec![number; usize::from(number) * 9]);
    }
    assert_eq!(pack.snapshot().find(b"cat/01.jpg").unwrap(), None);

    let out = set.dir.path().join("out");
    let extracted = extract(&pack, &[], &out, &mut |sentence| panic!("{sentence}")).unwrap();
    assert_eq!((extracted.asked, extracted.files), (40, 40));
    for path in ["cat/08.jpg", "dog/39.jpg"] {
        assert_eq!(fs::read(out.join(path)).unwrap(), fs::read(set.source().join(path)).unwrap());
        let times = [out.join(path), set.source().join(path)]
            .map(|path| path.metadata().unwrap().modified().unwrap());
        assert_eq!(times[0], times[1]);
    }
    let verified = verify(&set.made(), &mut |_, _| {}).unwrap();
    assert_eq!((verified.records, verified.faults), (40, vec![]));
}

#[test]
fn records_lie_shuffled_and_the_same_seed_gives_the_same_order() {
    let order = |options| {
        let set = Set::many();
        set.pack_with(options).unwrap();
        let pack = set.open();
        let mut order: Vec<(usize, u64, Vec<u8>)> = (0..40)
            .map(|number| pack.snapshot().entry(number).unwrap())
            .map(|entry| (entry.chunk, entry.offset, entry.name.to_vec()))
            .collect();
        order.sort();
        order.into_iter().map(|(_, _, name)| name).collect::<Vec<_>>()
    };
    let (shuffled, plain) = (order(SMALL), order(Options { shuffle: None, ..SMALL }));
    assert!(plain.is_sorted());
    assert_ne!(shuffled, plain);
    assert_eq!(shuffled, order(SMALL));
    assert_ne!(shuffled, order(Options { shuffle: Some(8), ..SMALL }));
    // Not class by class.
    assert!(shuffled[..20].iter().any(|name| name.starts_with(b"dog")));
    assert!(shuffled[..20].iter().any(|name| name.starts_with(b"cat")));
}

#[test]
fn a_chunk_has_at_least_its_bytes_and_a_large_file_one_of_its_own() {
    let set = Set::many();
    set.put(b"dog/large.bin", &[9; 5000]);
    set.pack();
    let pack = set.open();
    let sizes: Vec<u64> =
        (0..pack.snapshot().chunks()).map(|at| pack.snapshot().chunk(at).unwrap().bytes).collect();
    assert!(sizes[..sizes.len() - 1].iter().all(|bytes| *bytes >= 1000), "{sizes:?}");
    let large = pack.snapshot().entry(pack.snapshot().find(b"dog/large.bin").unwrap().unwrap()).unwrap();
    let beside =
        (0..41).filter(|number| pack.snapshot().entry(*number).unwrap().chunk == large.chunk).count();
    assert_eq!(beside, 1);
    assert_eq!(read(&pack, b"dog/large.bin"), [9; 5000]);
}

#[test]
fn a_second_run_reads_only_what_is_new_or_was_changed() {
    let set = Set::many();
    set.pack();
    let before = set.open().snapshot().version();
    let (packed, _) = set.pack();
    assert_eq!((packed.files, packed.kept), (0, 40));
    assert_eq!(set.open().snapshot().version(), before);

    set.put(b"cat/00.jpg", b"another picture");
    set.put(b"dog/new.jpg", b"new");
    fs::remove_file(set.source().join("dog/01.jpg")).unwrap();
    let (packed, sentences) = set.pack();
    assert_eq!((packed.files, packed.kept, packed.changed, packed.problems), (2, 38, 1, 1));
    assert!(sentences[0].starts_with("dog/01.jpg stays in the pack"), "{sentences:?}");
    let pack = set.open();
    assert_ne!(pack.snapshot().version(), before);
    assert_eq!(pack.snapshot().records(), 41);
    assert_eq!(read(&pack, b"cat/00.jpg"), b"another picture");
    assert_eq!(read(&pack, b"dog/01.jpg"), [1; 9]);
    let verified = verify(&set.made(), &mut |_, _| {}).unwrap();
    assert_eq!(verified.faults, vec![]);
}

#[test]
fn a_run_goes_on_where_one_was_interrupted() {
    let whole = Set::many();
    whole.pack();
    let set = Set::many();
    set.pack();
    // As after a kill: later chunks and the snapshot are not there, one was being written.
    let chunks = chunk_files(&set.made());
    for path in &chunks[3..] {
        fs::remove_file(path).unwrap();
    }
    fs::remove_file(set.made().join("snapshot")).unwrap();
    let unfinished = format!("{}.tmp", chunks[4].display());
    fs::write(&unfinished, b"half").unwrap();
    assert!(Pack::open(&set.made()).unwrap_err().to_string().contains("packing has not ended"));
    let (packed, _) = set.pack();
    assert!(packed.kept > 0 && packed.files > 0 && packed.kept + packed.files == 40, "{packed:?}");
    assert!(!Path::new(&unfinished).exists());
    // The same files lie beside each other as without the interruption.
    let together = |set: &Set| {
        let pack = set.open();
        (0..40).map(|number| pack.snapshot().entry(number).unwrap().chunk).collect::<Vec<_>>()
    };
    assert_eq!(together(&set), together(&whole));
}

#[test]
fn odd_names_links_and_empty_files_are_packed_and_what_cannot_be_has_a_sentence() {
    let set =
        Set::new(&[(b"a/\xff\xfe.jpg", b"no text"), (b"a/empty", b""), (b"b/plain", b"1"), (b"\n", b"line")]);
    symlink("plain", set.source().join("b/link")).unwrap();
    symlink("../a", set.source().join("b/folder")).unwrap();
    symlink("nowhere", set.source().join("b/dangling")).unwrap();
    symlink("..", set.source().join("b/around")).unwrap();
    let pipe = set.source().join("b/pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let (packed, mut sentences) = set.pack();
    sentences.sort();
    assert_eq!(packed.problems, 3, "{sentences:?}");
    let ends = sentences.iter().map(|sentence| sentence.rsplit_once('/').unwrap().1).collect::<Vec<_>>();
    assert_eq!(ends[0], "around is not packed: this link leads back to a folder around it");
    assert!(ends[1].starts_with("dangling is not packed: this link leads nowhere"), "{ends:?}");
    assert_eq!(ends[2], "pipe is not packed: it is neither a file nor a folder");
    let pack = set.open();
    let expected: [&[u8]; 7] = [
        b"\n",
        b"a/empty",
        b"a/\xff\xfe.jpg",
        b"b/link",
        b"b/plain",
        b"b/folder/empty",
        b"b/folder/\xff\xfe.jpg",
    ];
    assert_eq!(names(&pack), expected);
    assert_eq!(read(&pack, b"a/\xff\xfe.jpg"), b"no text");
    assert_eq!(read(&pack, b"b/link"), b"1");
    assert_eq!(read(&pack, b"a/empty"), b"");
    assert_eq!(pack.snapshot().entry(0).unwrap().label, None);
}

/// Seen: 37 folders with two links each, which have 2^36 names, kept `pack` busy for ever.
#[test]
fn links_that_fork_end() {
    let set = Set::new(&[(b"0/plain", b"1")]);
    for number in 0..40 {
        let folder = set.source().join(number.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["a", "b"] {
            symlink(format!("../{}", number + 1), folder.join(name)).unwrap();
        }
    }
    std::fs::create_dir(set.source().join("40")).unwrap();
    let (packed, sentences) = set.pack();
    assert!(packed.problems > 0, "{packed:?}");
    let many = "links lead to this folder under 100 other names";
    assert!(sentences.iter().any(|sentence| sentence.ends_with(many)), "{:?}", &sentences[..3]);
    assert_eq!(names(&set.open()), [b"0/plain"]);
}

#[test]
fn a_pack_is_not_made_within_its_source_nor_of_two_sources() {
    let set = Set::many();
    let within = set.source().join("deep/er.pack");
    let refused = pack(&set.source(), &within, SMALL, &Disk, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("a source is never written to"), "{refused}");
    assert!(!set.source().join("deep").exists());
    set.pack();
    let other = Set::new(&[(b"x/y", b"z")]);
    let refused = pack(&other.source(), &set.made(), SMALL, &Disk, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("is of another data set"), "{refused}");
    let full = Set::new(&[(b"x/y", b"z")]);
    fs::create_dir(full.made()).unwrap();
    fs::write(full.made().join("thesis.txt"), b"mine").unwrap();
    assert!(full.pack_with(SMALL).unwrap_err().contains("files of another kind"));
}

#[test]
fn a_new_class_that_moves_the_labels_of_others_is_refused() {
    let set = Set::many();
    set.pack();
    set.put(b"ant/1.jpg", b"1");
    let refused = set.pack_with(SMALL).unwrap_err();
    assert!(refused.contains("would get another label"), "{refused}");
    // One that comes behind moves none.
    fs::remove_dir_all(set.source().join("ant")).unwrap();
    set.put(b"zebra/1.jpg", b"1");
    assert_eq!(set.pack().0.files, 1);
}

#[test]
fn names_that_climb_out_are_refused_when_they_are_extracted() {
    use stallscope_pack::{About, chunk_of, seal};
    let set = Set::new(&[(b"aa/passwd", b"mine"), (b"b/fine", b"fine")]);
    let dir = set.made();
    fs::create_dir(&dir).unwrap();
    let id = Id::written(1, [0; 8]);
    let records: [(&[u8], &[u8], About); 2] =
        [(b"aa/passwd", b"mine", About::default()), (b"b/fine", b"fine", About::default())];
    let mut bytes = chunk_of(id, Id([3; 16]), &records).unwrap();
    // Names of the same length, under checksums that are right.
    let at = bytes.windows(9).position(|part| part == b"aa/passwd").unwrap();
    bytes[at..at + 9].copy_from_slice(b"../passwd");
    seal(&mut bytes);
    fs::write(dir.join(id.file_name()), bytes).unwrap();
    rebuild(&dir, false, &Disk, &mut |_, _| {}).unwrap();
    let out = set.dir.path().join("out");
    let mut sentences = Vec::new();
    let extracted =
        extract(&set.open(), &[], &out, &mut |sentence| sentences.push(sentence.to_owned())).unwrap();
    assert_eq!((extracted.asked, extracted.files), (2, 1));
    assert!(sentences[0].contains("it climbs out of the folder"), "{sentences:?}");
    assert!(!set.dir.path().join("passwd").exists());
    // Neither is a link followed that lies in the way, nor anything written over.
    fs::remove_dir_all(&out).unwrap();
    fs::create_dir(&out).unwrap();
    symlink(set.dir.path(), out.join("b")).unwrap();
    let extracted = extract(&set.open(), &[b"b".to_vec()], &out, &mut |_| {}).unwrap();
    assert_eq!((extracted.asked, extracted.files), (1, 0));
    assert!(!set.dir.path().join("fine").exists());
}

#[test]
fn a_snapshot_that_has_the_same_bytes_as_many_files_fills_no_disk() {
    use stallscope_pack::{Chunk, Deleted, build};
    let set = Set::new(&[(b"a/1", &[7; 10_000])]);
    set.pack();
    let path = chunk_files(&set.made()).remove(0);
    let mut chunk = Chunk::read(&fs::File::open(&path).unwrap(), &path).unwrap();
    let record = chunk.records[0].clone();
    chunk.records.extend((2..50).map(|number| {
        let mut other = record.clone();
        other.name = format!("a/{number}").into_bytes();
        other
    }));
    fs::write(set.made().join("snapshot"), build(chunk.pack, &[chunk], &Deleted::default()).unwrap())
        .unwrap();
    let out = set.dir.path().join("out");
    let refused = extract(&set.open(), &[], &out, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("has the same bytes of a chunk in several files"), "{refused}");
    assert_eq!(fs::read_dir(out.join("a")).unwrap().count(), 1);
}

#[test]
fn more_chunks_than_descriptors_are_read() {
    let set = Set::new(&[]);
    for number in 0..60 {
        set.put(format!("a/{number}").as_bytes(), &[number; 50]);
    }
    set.pack_with(Options { chunk_bytes: 1, ..SMALL }).unwrap();
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(64), ..before };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let pack = set.open();
    rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
    assert_eq!(pack.snapshot().chunks(), 60);
    for _ in 0..2 {
        (0..60_u8).for_each(|number| assert_eq!(read(&pack, format!("a/{number}").as_bytes()), [number; 50]));
    }
    let open =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    // And the folder.
    let open = open.filter(|path| path.starts_with(set.made()) && *path != set.made()).count();
    assert_eq!(open, 16);
}
