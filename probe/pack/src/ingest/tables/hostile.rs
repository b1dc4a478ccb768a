//! Files that are made to take much disk, memory or time for their few bytes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{Columns, Labels, MOST_WORD_BYTES, Place, Tables};
use crate::ingest::Notice;
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const I32: u8 = 5;
const I64: u8 = 6;
const TEXT: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

const ZSTD: i64 = 6;
const DATA: i64 = 0;
const DICTIONARY: i64 = 2;
const PLAIN: i64 = 0;
const OF_DICTIONARY: i64 = 8;

/// A struct of Thrift's compact protocol, whose fields are added in their order.
#[derive(Default)]
struct Fields {
    bytes: Vec<u8>,
    last: u8,
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

impl Fields {
    fn with(mut self, field: u8, kind: u8, value: &[u8]) -> Fields {
        self.bytes.push((field - self.last) << 4 | kind);
        self.bytes.extend(value);
        self.last = field;
        self
    }

    fn number(self, field: u8, kind: u8, number: i64) -> Fields {
        self.with(field, kind, &varint((number << 1) as u64))
    }

    fn text(self, field: u8, text: &str) -> Fields {
        self.with(field, TEXT, &[varint(text.len() as u64), text.into()].concat())
    }

    fn list(self, field: u8, structs: &[Vec<u8>]) -> Fields {
        let count = varint(structs.len() as u64);
        self.with(field, LIST, &[&[0xf0 | STRUCT], &count[..], &structs.concat()].concat())
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

/// A page of so many values, which is stored as these bytes.
fn page(kind: i64, encoding: i64, values: usize, stored: &[u8], expanded: usize) -> Vec<u8> {
    let head = Fields::default().number(1, I32, kind).number(2, I32, expanded as i64);
    let head = head.number(3, I32, stored.len() as i64);
    let own = Fields::default().number(1, I32, values as i64).number(2, I32, encoding);
    let head = head.with(if kind == DATA { 5 } else { 7 }, STRUCT, &own.end());
    [&head.end(), stored].concat()
}

fn compressed(kind: i64, encoding: i64, values: usize, bytes: &[u8]) -> Vec<u8> {
    page(kind, encoding, values, &zstd::bulk::compress(bytes, 1).unwrap(), bytes.len())
}

fn plain(texts: &[&str]) -> Vec<u8> {
    texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()).collect()
}

/// A page of these texts.
fn texts(texts: &[&str]) -> Vec<u8> {
    compressed(DATA, PLAIN, texts.len(), &plain(texts))
}

/// A dictionary, and a page of one run of each of its entries that is named.
fn looked_up(dictionary: &[&str], entries: &[u8]) -> Vec<u8> {
    let runs: Vec<u8> = entries.iter().flat_map(|entry| [2, *entry]).collect();
    let first = compressed(DICTIONARY, PLAIN, dictionary.len(), &plain(dictionary));
    [first, compressed(DATA, OF_DICTIONARY, entries.len(), &[&[8], &runs[..]].concat())].concat()
}

/// Where a column's pages lie from the file's begin on, and how many bytes they have.
type At = (usize, usize);

/// A file of these pages, with columns of text. `groups`: their rows, and of each column where it lies.
fn file(pages: &[u8], columns: &[&str], groups: &[(usize, Vec<At>)]) -> Vec<u8> {
    let column = |name: &&str| {
        let column = Fields::default().number(1, I32, 6).number(3, I32, 0);
        column.text(4, name).number(6, I32, 0).end()
    };
    let root = Fields::default().text(4, "schema").number(5, I32, columns.len() as i64).end();
    let columns = [vec![root], columns.iter().map(column).collect()].concat();
    let part = |(begin, bytes): &At| {
        let part = Fields::default().number(4, I32, ZSTD).number(7, I64, *bytes as i64);
        Fields::default().with(3, STRUCT, &part.number(9, I64, *begin as i64).end()).end()
    };
    let group = |(rows, parts): &(usize, Vec<At>)| {
        let parts: Vec<Vec<u8>> = parts.iter().map(part).collect();
        Fields::default().list(1, &parts).number(3, I64, *rows as i64).end()
    };
    let groups: Vec<Vec<u8>> = groups.iter().map(group).collect();
    let footer =
        Fields::default().number(1, I32, 1).list(2, &columns).number(3, I64, 1).list(4, &groups).end();
    let size = (footer.len() as u32).to_le_bytes();
    [b"PAR1", pages, &footer, &size, b"PAR1"].concat()
}

/// A file of one column, each of whose groups has pages of its own.
fn one_column(groups: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let (mut pages, mut of) = (Vec::new(), Vec::new());
    for (rows, own) in groups {
        of.push((*rows, vec![(4 + pages.len(), own.len())]));
        pages.extend(own);
    }
    file(&pages, &["text"], &of)
}

/// A file that was read, and expanded as far as it can be.
struct Expanded {
    tables: Tables,
    /// Of the file that was expanded into.
    bytes: u64,
    sentences: Vec<String>,
}

impl Expanded {
    fn of(bytes: &[u8]) -> Expanded {
        Expanded::of_all(&[bytes])
    }

    fn of_all(files: &[&[u8]]) -> Expanded {
        let dir = tempfile::tempdir().unwrap();
        let write = |(number, bytes): (usize, &&[u8])| {
            // The first is called as if it were alone.
            let path = dir.path().join(format!("made{}", "-".repeat(number)));
            fs::write(&path, bytes).unwrap();
            path
        };
        let paths: Vec<PathBuf> = files.iter().enumerate().map(write).collect();
        let mut sentences = Vec::new();
        let mut problem = |sentence: String| sentences.push(sentence);
        let mut tables = Tables::of(&paths, Columns::default(), &mut problem, &mut |_| {}).unwrap();
        let spill: RefCell<Option<File>> = RefCell::default();
        let make = || {
            let file = tempfile::tempfile().unwrap();
            *spill.borrow_mut() = Some(file.try_clone().unwrap());
            Ok((file, PathBuf::from("spill")))
        };
        let mut tell = |notice: Notice<'_>| {
            if let Notice::Problem(sentence) = notice {
                sentences.push(sentence.to_owned());
            }
        };
        tables.unpack(&make, &|_| None, &mut tell).unwrap();
        let bytes = spill.into_inner().map_or(0, |file| file.metadata().unwrap().len());
        Expanded { tables, bytes, sentences }
    }

    /// How many rows can be packed.
    fn rows(&self) -> usize {
        self.tables.names().len()
    }

    /// The one sentence that there is, behind the file's path.
    fn sentence(&self) -> &str {
        assert_eq!(self.sentences.len(), 1, "{:?}", self.sentences);
        self.sentences[0].split_once("made ").unwrap().1
    }
}

#[test]
fn bytes_of_a_file_are_of_one_group_of_rows() {
    let own = texts(&["a text"]);
    let whole = Expanded::of(&one_column(&[(1, own.clone()), (1, own.clone())]));
    assert_eq!((whole.rows(), whole.sentences.len()), (2, 0), "{:?}", whole.sentences);
    let two = [own.clone(), own.clone()].concat();
    let (all, last) = ((4, two.len()), (4 + own.len(), own.len()));
    for parts in [[last, last], [all, last], [last, all]] {
        let groups = parts.map(|part| (1, vec![part]));
        let made = Expanded::of(&file(&two, &["text"], &groups));
        assert_eq!(made.sentence(), "is not packed: its footer is damaged: rows lie where others lie");
        assert_eq!((made.rows(), made.bytes), (0, 0));
    }
}

#[test]
fn what_is_expanded_is_counted_with_what_is_no_value() {
    // Of each page all but four bytes lie behind its only value, which is empty.
    let own = compressed(DATA, PLAIN, 1, &vec![0; 600 << 10]);
    let made = Expanded::of(&one_column(&vec![(1, own); 8]));
    assert_eq!((made.rows(), made.bytes), (1, 600 << 10));
    let sentence = "are not packed: its pages have more bytes than those of such a file can have";
    assert_eq!(made.sentences.len(), 7);
    assert!(made.sentences.iter().all(|found| found.ends_with(sentence)), "{:?}", made.sentences);
}

#[test]
fn a_thousand_files_of_few_bytes_take_no_more_than_one() {
    // 600 KiB of zeros, of which one empty value.
    let zeros = one_column(&[(1, compressed(DATA, PLAIN, 1, &vec![0; 600 << 10]))]);
    let made = Expanded::of_all(&[&zeros, &zeros, &zeros]);
    assert_eq!((made.rows(), made.bytes, made.sentences.len()), (1, 600 << 10, 2), "{:?}", made.sentences);
    // As many rows of one text of a dictionary.
    let runs = [&[8], &varint(65_536 << 1)[..], &[0]].concat();
    let first = compressed(DICTIONARY, PLAIN, 1, &plain(&[""]));
    let rows = one_column(&[(65_536, [first, compressed(DATA, OF_DICTIONARY, 65_536, &runs)].concat())]);
    let made = Expanded::of_all(&[&rows, &rows, &rows]);
    assert_eq!(made.rows(), 2 << 16);
    let expected = "- is not packed: it and files before it have more rows than so many bytes can have";
    assert!(made.sentences.len() == 1 && made.sentences[0].ends_with(expected), "{:?}", made.sentences);
}

/// Of 8 KB on a disk, with 1 GiB of holes between, 67 million rows were taken.
#[test]
fn holes_of_a_file_have_no_rows() {
    let zeros = vec![0; 8 << 20];
    let bytes = file(&zeros, &["text"], &[(300_000, vec![(4, zeros.len())])]);
    let made = Expanded::of(&bytes);
    assert!(!made.sentence().contains("more rows"), "{:?}", made.sentences);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made");
    let (begin, end) = (&bytes[..4], &bytes[4 + zeros.len()..]);
    let sparse = File::create(&path).unwrap();
    sparse.set_len(bytes.len() as u64).unwrap();
    sparse.write_all_at(begin, 0).unwrap();
    sparse.write_all_at(end, (bytes.len() - end.len()) as u64).unwrap();
    let mut sentences = Vec::new();
    let mut problem = |sentence: String| sentences.push(sentence);
    Tables::of(&[path], Columns::default(), &mut problem, &mut |_| {}).unwrap();
    assert!(
        sentences.len() == 1 && sentences[0].ends_with("more rows than so many bytes can have"),
        "{sentences:?}"
    );
}

#[test]
fn nothing_is_read_of_pages_without_rows() {
    // Neither do they take of what others may have.
    let empty = page(DATA, PLAIN, 0, b"which is not compressed", 16 << 20);
    let made =
        Expanded::of(&one_column(&[(2, [&empty, &texts(&["a"])[..], &empty, &texts(&["b"])].concat())]));
    assert_eq!((made.rows(), made.sentences.len()), (2, 0), "{:?}", made.sentences);
}

#[test]
fn a_column_has_one_dictionary_before_all_values() {
    let (two, one) = (looked_up(&["a", "b"], &[1, 0]), texts(&["c"]));
    let fallen_back = Expanded::of(&one_column(&[(3, [&two[..], &one].concat())]));
    assert_eq!((fallen_back.rows(), fallen_back.sentences.len()), (3, 0), "{:?}", fallen_back.sentences);
    let first = compressed(DICTIONARY, PLAIN, 1, &plain(&["a"]));
    for (rows, pages) in [(2, [&first[..], &two].concat()), (3, [&one[..], &two].concat())] {
        let made = Expanded::of(&one_column(&[(rows, pages)]));
        let expected = "are not packed: a dictionary lies behind other pages of its column";
        assert_eq!(made.sentence(), expected);
    }
}

/// A file with labels of these pages.
fn labelled(groups: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let (mut pages, mut of) = (Vec::new(), Vec::new());
    for (rows, labels) in groups {
        let own = texts(&vec!["text"; *rows]);
        let begin = 4 + pages.len();
        of.push((*rows, vec![(begin, own.len()), (begin + own.len(), labels.len())]));
        pages.extend([own, labels.clone()].concat());
    }
    file(&pages, &["text", "label"], &of)
}

#[test]
fn labels_are_no_longer_than_names_of_classes() {
    let (longest, long) = ("x".repeat(MOST_WORD_BYTES), "y".repeat(MOST_WORD_BYTES + 1));
    let made = Expanded::of(&labelled(&[(2, texts(&["a", &longest]))]));
    assert_eq!((made.rows(), made.sentences.len()), (2, 0), "{:?}", made.sentences);
    let expected = "is not packed: one of its labels has 1025 bytes, where 1024 are the most; name another column by --label";
    for labels in [texts(&["a", &long]), looked_up(&["a", &long], &[0, 1])] {
        let made = Expanded::of(&labelled(&[(2, labels)]));
        assert_eq!((made.rows(), made.sentence()), (0, expected));
    }
    assert!(Labels::default().word(long.as_bytes()).is_err());
}

#[test]
fn entries_are_labels_of_their_own_groups_dictionary() {
    // Pyarrow writes a whole dictionary for a group of fewer rows.
    let groups = [
        (1, looked_up(&["b", "a"], &[0])),
        (2, looked_up(&["b", "a"], &[1, 0])),
        (4, looked_up(&["c", "b"], &[0, 1, 1, 0])),
    ];
    let made = Expanded::of(&labelled(&groups));
    let labels: Vec<_> = made.tables.names().iter().map(|name| made.tables.label(name)).collect();
    assert_eq!(labels, [1, 0, 1, 2, 1, 1, 2].map(Some));
}

#[test]
fn groups_of_rows_take_memory_by_their_rows_and_the_file() {
    let own = texts(&["a text"]);
    // Where pyarrow has columns without values.
    let mut groups = vec![(0, vec![(0, 0)]); 10_000];
    groups.push((1, vec![(4, own.len())]));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made");
    fs::write(&path, file(&own, &["text"], &groups)).unwrap();
    let mut problem = |sentence: String| panic!("{sentence}");
    let tables = Tables::of(&[path], Columns::default(), &mut problem, &mut |_| {}).unwrap();
    assert_eq!((tables.tables[0].rows.len(), tables.tables[0].groups.len()), (1, 1));
    // More than one for each four thousand bytes.
    let made = Expanded::of(&file(b"", &["text"], &vec![(1, vec![(4, 0)]); 67_000]));
    assert_eq!(
        made.sentence(),
        "is not packed: its rows are in too many groups: write it anew with more rows in each"
    );
}

#[test]
fn an_arrow_batch_describes_all_columns() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tables/words.arrow");
    let mut bytes = fs::read(path).unwrap();
    // Without labels, so that the second column is not looked at.
    while let Some(at) = bytes.windows(5).position(|name| name == b"label") {
        bytes[at] = b'L';
    }
    let made = Expanded::of(&bytes);
    assert_eq!((made.rows(), made.sentences.len()), (6, 0), "{:?}", made.sentences);
    assert!(matches!(made.tables.tables[0].rows[0].place, Place::InFile(_)));
    // Two columns, the first of four rows without a null: now there is one.
    let two = [&[2, 0, 0, 0, 4][..], &[0; 15], &[4]].concat();
    let at = bytes.windows(two.len()).position(|found| found == two).unwrap();
    bytes[at] = 1;
    assert_eq!(Expanded::of(&bytes).sentence(), "is not packed: a batch is damaged");
}

/// Of 1 MB on a disk, of which the rest are holes, 250 messages had taken 17 s, and additions to a dictionary 1.2 GB.
#[test]
fn an_arrow_file_has_no_more_than_its_bytes_on_the_disk() {
    let read = |name: &str| {
        fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tables").join(name)).unwrap()
    };
    let root = tempfile::tempdir().unwrap();
    let sentence = |parts: &[(&[u8], u64)]| {
        let path = root.path().join("x.arrow");
        let file = File::create(&path).unwrap();
        let mut at = 0;
        for (bytes, next) in parts {
            file.write_all_at(bytes, at).unwrap();
            at += next;
        }
        file.write_all_at(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], at).unwrap();
        let mut sentences = Vec::new();
        let problem = &mut |sentence: String| sentences.push(sentence);
        let tables = Tables::of(&[path], Columns::default(), problem, &mut |_| {}).unwrap();
        assert!(tables.names().is_empty());
        sentences.concat()
    };
    // A description of columns, one row of 2 MiB, and 60,000 entries that are added to a dictionary.
    let (value, added) = (read("holes.arrow"), read("additions.arrow"));
    let (columns, entries) = added.split_at(312);
    let long = [&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 4], &columns[8..]].concat();
    let begin = (columns, columns.len() as u64);
    for (parts, what) in [
        (vec![begin, (&long, (64 << 20) + 8), (&long, (64 << 20) + 8)], "its messages have more bytes than"),
        (vec![begin, (entries, 60_200), (entries, 60_200)], "it has more rows than so many bytes can have"),
        (vec![(&value, 336 + 64 + (2 << 20))], "its values have more bytes than so many on the disk"),
    ] {
        let found = sentence(&parts);
        assert!(found.contains(what), "{found}");
    }
}
