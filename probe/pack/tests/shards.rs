//! Tar files are packed: what is in them comes back, with its labels, and what must not be a file has a sentence.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use stallscope_pack::{Disk, Notice, Options, Origin, Pack, Packed, append, delete, pack, purge, verify};
use std::fs;
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

const OPTIONS: Options = Options { shuffle: Some(3), zstd: None, chunk_bytes: 500 };

/// Name, label, bytes.
type Record = (String, Option<u32>, Vec<u8>);

struct Set {
    dir: TempDir,
    paths: Vec<PathBuf>,
}

fn header(kind: EntryType, bytes: u64, mtime: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(bytes);
    header.set_mode(0o644);
    header.set_mtime(mtime);
    header
}

/// As the name is, whatever the builder thinks of it.
fn put_raw(builder: &mut Builder<Vec<u8>>, kind: EntryType, name: &[u8], claimed: u64, content: &[u8]) {
    let mut header = header(kind, claimed, 5);
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

fn put(builder: &mut Builder<Vec<u8>>, name: &str, content: &[u8]) {
    let mut header = header(EntryType::Regular, content.len() as u64, 1_600_000_000);
    builder.append_data(&mut header, name, content).unwrap();
}

impl Set {
    fn new() -> Set {
        Set { dir: tempfile::tempdir().unwrap(), paths: Vec::new() }
    }

    fn shard(&mut self, name: &str, fill: impl FnOnce(&mut Builder<Vec<u8>>)) -> PathBuf {
        let mut builder = Builder::new(Vec::new());
        fill(&mut builder);
        let path = self.dir.path().join(name);
        fs::write(&path, builder.into_inner().unwrap()).unwrap();
        self.paths.push(path.clone());
        path
    }

    fn made(&self) -> PathBuf {
        self.dir.path().join("made.pack")
    }

    fn origin(&self, by_shard: bool) -> Origin<'_> {
        Origin::Shards { paths: &self.paths, by_shard }
    }

    fn pack(&self, by_shard: bool) -> Result<(Packed, Vec<String>), String> {
        let mut sentences = Vec::new();
        let packed = pack(self.origin(by_shard), &self.made(), OPTIONS, &Disk, &mut |notice| {
            if let Notice::Problem(sentence) = notice {
                sentences.push(sentence.to_owned());
            }
        });
        packed.map(|packed| (packed, sentences)).map_err(|error| error.to_string())
    }
}

fn records(dir: &Path) -> Vec<Record> {
    assert_eq!(verify(dir, &mut |_, _| {}).unwrap().faults, vec![]);
    let pack = Pack::open(dir).unwrap();
    let record = |number| {
        let entry = pack.snapshot().entry(number).unwrap();
        let mut bytes = vec![0; pack.size_of(&entry).unwrap()];
        pack.read(&entry, &mut bytes).unwrap();
        (String::from_utf8_lossy(entry.name).into_owned(), entry.label, bytes)
    };
    (0..pack.snapshot().records()).map(record).collect()
}

fn of(name: &str, label: Option<u32>, bytes: &[u8]) -> Record {
    (name.into(), label, bytes.to_vec())
}

/// Two shards of pictures with labels; of a key the label comes before or behind.
fn labelled() -> Set {
    let mut set = Set::new();
    for shard in 0..2_u8 {
        set.shard(&format!("train-{shard}.tar"), |builder| {
            for number in shard * 10..shard * 10 + 10 {
                let label = format!("{}\n", number % 4 * 3);
                if number % 2 == 0 {
                    put(builder, &format!("{number:04}.cls"), label.as_bytes());
                }
                put(builder, &format!("{number:04}.jpg"), &[number; 90]);
                put(builder, &format!("{number:04}.json"), b"{}");
                if number % 2 == 1 {
                    put(builder, &format!("{number:04}.cls"), label.as_bytes());
                }
            }
        });
    }
    set
}

#[test]
fn files_of_shards_have_the_labels_that_came_with_them() {
    let set = labelled();
    let (packed, sentences) = set.pack(false).unwrap();
    assert_eq!((packed.files, packed.problems), (40, 0), "{sentences:?}");
    let records = records(&set.made());
    assert_eq!(records.len(), 40);
    for (number, pair) in records.chunks(2).enumerate() {
        let (byte, label) = (number as u8, Some(number as u32 % 4 * 3));
        assert_eq!(pair[0], of(&format!("{number:04}.jpg"), label, &[byte; 90]));
        assert_eq!(pair[1], of(&format!("{number:04}.json"), label, b"{}"));
    }
    let pack = Pack::open(&set.made()).unwrap();
    assert!(pack.snapshot().has_labels());
    let images = stallscope_pack::Images::of(&pack, &[b".jpg".to_vec()]).unwrap();
    assert_eq!((images.count(), images.classes().len()), (20, 10));
    assert_eq!((images.at(0), images.at(3), images.at(20)), (Some((0, 0)), Some((6, 9)), None));
    // A file that is deleted moves nobody's label, and neither does purging.
    delete(&set.made(), &[b"0000.jpg".to_vec(), b"0001.json".to_vec()], &Disk, &mut |_| {}).unwrap();
    purge(&set.made(), 1.0, 500, &Disk, &mut |_| {}, &mut |_, _| {}).unwrap();
    let left: Vec<Record> = self::records(&set.made());
    assert_eq!(left, [&records[1..3], &records[4..]].concat());
    assert!(Pack::open(&set.made()).unwrap().snapshot().has_labels());
}

/// Each number below it would be a class, by a name in memory.
#[test]
fn a_label_far_beyond_the_pictures_is_of_no_class() {
    for (label, is_class) in [(16_777_215, false), (1 << 20, false), ((1 << 20) - 1, true)] {
        let mut set = Set::new();
        set.shard("train.tar", |builder| {
            put(builder, "0.jpg", b"picture");
            put(builder, "0.cls", label.to_string().as_bytes());
        });
        set.pack(false).unwrap();
        let pack = Pack::open(&set.made()).unwrap();
        let images = stallscope_pack::Images::of(&pack, &[b".jpg".to_vec()]);
        assert_eq!(images.is_ok(), is_class, "{label}");
        if let Err(error) = images {
            assert!(error.to_string().contains("read it with PackedDataset"), "{error}");
        }
    }
}

#[test]
fn a_second_run_reads_only_what_is_new_and_other_shards_are_added() {
    let mut set = labelled();
    set.pack(false).unwrap();
    let again = set.pack(false).unwrap().0;
    assert_eq!((again.files, again.kept), (0, 40));
    // The same bytes with another label.
    let name = set.paths[0].clone();
    let mut bytes = fs::read(&name).unwrap();
    let at = bytes.windows(2).position(|pair| pair == b"6\n").unwrap();
    bytes[at] = b'7';
    fs::write(&name, bytes).unwrap();
    let changed = set.pack(false).unwrap().0;
    assert_eq!((changed.files, changed.kept, changed.changed), (2, 38, 2));
    let other = set.shard("val.tar", |builder| {
        put(builder, "0100.jpg", b"new");
        put(builder, "0100.cls", b"2");
    });
    let refused = Set { dir: tempfile::tempdir().unwrap(), paths: vec![other.clone()] };
    let refused =
        pack(refused.origin(false), &set.made(), OPTIONS, &Disk, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("stallscope pack append"), "{refused}");
    let origin = Origin::Shards { paths: &[other], by_shard: false };
    assert_eq!(append(origin, &set.made(), OPTIONS, false, &Disk, &mut |_| {}).unwrap().files, 1);
    let records = records(&set.made());
    assert_eq!((records.len(), &records[40]), (41, &of("0100.jpg", Some(2), b"new")));
    // A folder has other labels.
    let folder = set.dir.path().join("folder");
    fs::create_dir_all(folder.join("cat")).unwrap();
    fs::write(folder.join("cat/1.jpg"), b"1").unwrap();
    let refused = append(&folder, &set.made(), OPTIONS, false, &Disk, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("have labels by folders, and those of the pack of their own"), "{refused}");
}

#[test]
fn a_tar_file_of_a_folder_is_packed_as_the_folder() {
    let mut set = Set::new();
    set.shard("set.tar", |builder| {
        put_raw(builder, EntryType::Directory, b"./", 0, b"");
        put_raw(builder, EntryType::Directory, b"./dog/", 0, b"");
        // An old one has folders as files.
        put_raw(builder, EntryType::Regular, b"./cat/", 0, b"");
        put_raw(builder, EntryType::Regular, b"./dog/1.jpg", 3, b"one");
        put_raw(builder, EntryType::Regular, b"./cat/2.jpg", 0, b"");
        put(builder, &format!("cat/{}.jpg", "long".repeat(50)), b"long");
        // Put in again, as `tar -r` does.
        put_raw(builder, EntryType::Regular, b"./dog/1.jpg", 5, b"again");
    });
    let (packed, sentences) = set.pack(false).unwrap();
    assert_eq!((packed.files, packed.problems), (3, 0), "{sentences:?}");
    let long = format!("cat/{}.jpg", "long".repeat(50));
    assert_eq!(
        records(&set.made()),
        [of("cat/2.jpg", Some(0), b""), of(&long, Some(0), b"long"), of("dog/1.jpg", Some(1), b"again")]
    );
}

#[test]
fn one_name_in_two_shards_is_refused_or_has_two_folders() {
    let mut set = Set::new();
    for name in ["a.tar", "b.tar"] {
        set.shard(name, |builder| {
            put(builder, "0.txt", name.as_bytes());
            put(builder, "0.cls", b"5");
        });
    }
    let refused = set.pack(false).unwrap_err();
    assert!(
        refused.starts_with("0.txt is in ") && refused.contains("--by-shard puts the files"),
        "{refused}"
    );
    set.pack(true).unwrap();
    assert_eq!(records(&set.made()), [of("a/0.txt", Some(5), b"a.tar"), of("b/0.txt", Some(5), b"b.tar")]);
}

#[test]
fn members_that_must_not_be_files_have_a_sentence_and_the_others_are_packed() {
    let mut set = Set::new();
    set.shard("bad.tar", |builder| {
        put_raw(builder, EntryType::Regular, b"/etc/passwd", 3, b"bad");
        put_raw(builder, EntryType::Regular, b"a/../../b", 3, b"bad");
        put_raw(builder, EntryType::Symlink, b"link", 0, b"");
        put_raw(builder, EntryType::Link, b"hard", 0, b"");
        put_raw(builder, EntryType::Fifo, b"pipe", 0, b"");
        put_raw(builder, EntryType::Char, b"null", 0, b"");
        put(builder, "x.cls", b"one");
        put(builder, "y.cls", b"4294967295");
        put(builder, "x.jpg", b"fine");
        put(builder, "z.jpg", &[1; 2000]);
    });
    let (packed, sentences) = set.pack(false).unwrap();
    assert_eq!((packed.files, packed.problems), (2, 8), "{sentences:?}");
    for (sentence, why) in sentences.iter().zip([
        "it is absolute",
        "it climbs out of the folder",
        "it is a link",
        "it is a link",
        "it is neither a file nor a folder",
        "it is neither a file nor a folder",
        "it is no label, which is a whole number",
        "it is no label, which is a whole number",
    ]) {
        assert!(sentence.ends_with(why), "{sentence}");
    }
    assert_eq!(records(&set.made()), [of("x.jpg", None, b"fine"), of("z.jpg", None, &[1; 2000])]);
}

#[test]
fn sizes_that_are_not_there_take_no_memory_and_end_the_shard() {
    let mut set = Set::new();
    set.shard("huge.tar", |builder| {
        put(builder, "1.txt", b"fine");
        put_raw(builder, EntryType::Regular, b"2.txt", u64::MAX >> 2, b"little");
        put(builder, "3.txt", b"not reached");
    });
    let name = set.shard("name.tar", |builder| {
        put(builder, "4.txt", b"fine");
        put_raw(builder, EntryType::GNULongName, b"././@LongLink", 1 << 40, b"x");
    });
    // The name goes on as a hole.
    fs::File::options().write(true).open(&name).unwrap().set_len(1 << 41).unwrap();
    let cut = set.shard("cut.tar", |builder| put(builder, "5.txt", &[5; 2000]));
    let whole = fs::read(&cut).unwrap();
    fs::write(&cut, &whole[..1000]).unwrap();
    let gzip = set.shard("packed.tar.gz", |_| {});
    fs::write(&gzip, b"\x1f\x8b\x08\x00rest").unwrap();
    let text = set.shard("text.tar", |_| {});
    fs::write(&text, "no tar file, of more than a header. ".repeat(40)).unwrap();
    fs::write(set.shard("empty.tar", |_| {}), b"").unwrap();
    let (packed, sentences) = set.pack(false).unwrap();
    assert_eq!((packed.files, packed.problems), (2, 6), "{sentences:?}");
    for (sentence, why) in sentences.iter().zip([
        "is packed up to a fault alone: it is cut: 2.txt should have 4611686018427387903 bytes",
        "is packed up to a fault alone: a name or description in it has more than 4 MiB",
        "is not packed: it is cut: 5.txt should have 2000 bytes, and it ends at 1000",
        "is not packed: it is compressed; unpack it first",
        "is not packed: ",
        "is not packed: it is empty",
    ]) {
        assert!(sentence.contains(why), "{sentence}");
    }
    assert_eq!(records(&set.made()), [of("1.txt", None, b"fine"), of("4.txt", None, b"fine")]);
}
