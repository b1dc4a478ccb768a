//! Rows of tables are packed: their bytes come back in order, with their labels, whatever a file was written by or what became of it.
//! The files are those of tests/tables/make.py.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use stallscope_pack::{Columns, Disk, Notice, Options, Origin, Pack, Packed, append, pack, verify};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const OPTIONS: Options = Options { shuffle: Some(3), zstd: None, chunk_bytes: 500 };

/// Name, label, bytes.
type Record = (String, Option<u32>, Vec<u8>);

fn made_by_pyarrow(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables").join(name)
}

/// What became of packing these into `made.pack` of the folder, and the sentences.
fn packed(dir: &TempDir, paths: &[PathBuf], columns: Columns<'_>) -> Result<(Packed, Vec<String>), String> {
    packed_by(dir, paths, columns, OPTIONS)
}

fn packed_by(
    dir: &TempDir,
    paths: &[PathBuf],
    columns: Columns<'_>,
    options: Options,
) -> Result<(Packed, Vec<String>), String> {
    let mut sentences = Vec::new();
    let origin = Origin::Tables { paths, columns };
    let packed = pack(origin, &dir.path().join("made.pack"), options, &Disk, &mut |notice| {
        if let Notice::Problem(sentence) = notice {
            sentences.push(sentence.to_owned());
        }
    });
    packed.map(|packed| (packed, sentences)).map_err(|error| error.to_string())
}

fn records(dir: &TempDir) -> Vec<Record> {
    let made = dir.path().join("made.pack");
    assert_eq!(verify(&made, &mut |_, _| {}).unwrap().faults, vec![]);
    let pack = Pack::open(&made).unwrap();
    let record = |number| {
        let entry = pack.snapshot().entry(number).unwrap();
        let mut bytes = vec![0; pack.size_of(&entry).unwrap()];
        pack.read(&entry, &mut bytes).unwrap();
        (String::from_utf8_lossy(entry.name).into_owned(), entry.label, bytes)
    };
    (0..pack.snapshot().records()).map(record).collect()
}

fn picture(row: usize) -> Vec<u8> {
    [&[0xff, 0xd8, 0xff][..], &vec![row as u8; 50 + row]].concat()
}

/// What `make.py` has in both files of `train`.
fn train() -> Vec<Record> {
    let record = |row: usize| {
        let (shard, own) = (row / 10, row % 10);
        (format!("train-{shard:05}-of-00002/{own:010}.jpg"), Some(row as u32 % 3), picture(row))
    };
    (0..20).map(record).collect()
}

fn both() -> [PathBuf; 2] {
    // In any order.
    [1, 0].map(|shard| made_by_pyarrow(&format!("train-{shard:05}-of-00002.parquet")))
}

#[test]
fn rows_of_parquet_files_are_in_their_order_with_their_labels() {
    let dir = tempfile::tempdir().unwrap();
    let (packed, sentences) = packed(&dir, &both(), Columns::default()).unwrap();
    assert_eq!((packed.files, packed.problems), (20, 0), "{sentences:?}");
    assert!(packed.chunks > 1);
    assert_eq!(records(&dir), train());
    let pack = Pack::open(&dir.path().join("made.pack")).unwrap();
    let images = stallscope_pack::Images::of(&pack, &[b".jpg".to_vec()]).unwrap();
    assert_eq!((images.count(), images.classes().len(), images.at(7)), (20, 3, Some((7, 1))));
    // Nothing is left beside chunks and snapshot of what was expanded.
    let left = fs::read_dir(dir.path().join("made.pack")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| !name.to_str().unwrap().ends_with(".chunk")).collect();
    assert!(left.iter().all(|name| name == "snapshot" || name == "lock"), "{left:?}");
}

#[test]
fn a_second_run_reads_only_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let [other, first] = both();
    packed(&dir, std::slice::from_ref(&first), Columns::default()).unwrap();
    let (again, _) = packed(&dir, std::slice::from_ref(&first), Columns::default()).unwrap();
    assert_eq!((again.files, again.kept), (0, 10));
    let origin = Origin::Tables { paths: std::slice::from_ref(&other), columns: Columns::default() };
    let made = dir.path().join("made.pack");
    let appended = append(origin, &made, OPTIONS, false, &Disk, &mut |_| {}).unwrap();
    assert_eq!((appended.files, appended.kept), (10, 0));
    assert_eq!(records(&dir), train());
    let (again, _) = packed(&dir, &[first.clone(), other], Columns::default()).unwrap();
    assert_eq!((again.files, again.kept), (0, 20));
    // Other labels: these rows alone are packed again.
    let text = Columns { record: Some("image.path"), ..Columns::default() };
    let refused = packed(&dir, &[first], text).unwrap_err();
    assert!(refused.contains("is of another data set"), "{refused}");
}

#[test]
fn all_encodings_give_the_same_rows() {
    for name in ["deltas", "lengths", "dictionary"] {
        for zstd in [None, Some(3)] {
            let dir = tempfile::tempdir().unwrap();
            let path = made_by_pyarrow(&format!("{name}.parquet"));
            let options = Options { zstd, ..OPTIONS };
            let (packed, sentences) = packed_by(&dir, &[path], Columns::default(), options).unwrap();
            // Of each seven rows one is null and one is empty.
            let nulls = "9 rows of ";
            assert_eq!((packed.files, sentences.len()), (51, 1), "{name}: {sentences:?}");
            assert!(sentences[0].starts_with(nulls), "{sentences:?}");
            assert!(sentences[0].ends_with("are not packed, the first is row 3: their text is null"));
            let text =
                |row: usize| if row % 7 == 4 { String::new() } else { format!("row {} of a text", row / 4) };
            let expected: Vec<Record> = (0..60)
                .filter(|row| row % 7 != 3)
                .map(|row| {
                    let label = (row as u32 % 5).checked_sub(1);
                    (format!("{name}/{row:010}.txt"), label, text(row).into_bytes())
                })
                .collect();
            assert_eq!(records(&dir), expected, "{name}");
        }
    }
}

#[test]
fn a_folder_that_save_to_disk_wrote_is_packed_without_its_nulls() {
    let dir = tempfile::tempdir().unwrap();
    let (packed, sentences) = packed(&dir, &[made_by_pyarrow("saved")], Columns::default()).unwrap();
    assert_eq!((packed.files, packed.problems), (11, 1));
    assert!(
        sentences[0].starts_with("row 5 of ")
            && sentences[0].ends_with("saved/data-00000-of-00001.arrow is not packed: its image.bytes is null; if they are paths to files, pack the folder of those"),
        "{sentences:?}"
    );
    let record =
        |row: usize| (format!("data-00000-of-00001/{row:010}.jpg"), Some(row as u32 % 3), picture(row));
    assert_eq!(records(&dir), (0..12).filter(|row| *row != 5).map(record).collect::<Vec<_>>());
}

#[test]
fn texts_as_labels_have_the_numbers_of_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = made_by_pyarrow("words.arrow");
    let (packed, sentences) = packed(&dir, std::slice::from_ref(&path), Columns::default()).unwrap();
    assert_eq!((packed.files, packed.problems), (6, 0), "{sentences:?}");
    let labels = [Some(1), Some(0), None, Some(2), Some(0), Some(1)];
    let record = |row: usize| (format!("words/{row:010}"), labels[row], format!("row {row}").into_bytes());
    assert_eq!(records(&dir), (0..6).map(record).collect::<Vec<_>>());
    let origin = Origin::Tables { paths: &[path], columns: Columns::default() };
    let refused = append(origin, &dir.path().join("made.pack"), OPTIONS, false, &Disk, &mut |_| {});
    assert!(refused.unwrap_err().to_string().contains("pack all files into a new folder"));
}

#[test]
fn files_that_are_cut_are_named_and_the_others_are_packed() {
    let dir = tempfile::tempdir().unwrap();
    let [_, first] = both();
    let arrow = fs::read(made_by_pyarrow("saved/data-00000-of-00001.arrow")).unwrap();
    let paths = ["cut.parquet", "cut.arrow", "none.arrow", "short.parquet", "marked.arrow"]
        .map(|name| dir.path().join(name));
    let whole = fs::read(&first).unwrap();
    fs::write(&paths[0], &whole[..whole.len() - 1]).unwrap();
    // In the third batch of five rows.
    fs::write(&paths[1], &arrow[..arrow.len() - 100]).unwrap();
    fs::write(&paths[2], "no table at all, but a text").unwrap();
    fs::write(&paths[3], b"PAR1").unwrap();
    // All but the mark of its end.
    fs::write(&paths[4], &arrow[..arrow.len() - 8]).unwrap();
    let (packed, sentences) = packed(&dir, &[&paths[..], &[first]].concat(), Columns::default()).unwrap();
    for (sentence, expected) in sentences.iter().zip([
        "cut.parquet is not packed: it is cut: its footer is not there",
        "cut.arrow is packed up to a fault alone: it is cut",
        "none.arrow is not packed: it is neither a Parquet nor an Arrow file",
        "short.parquet is not packed: it is too short for a Parquet file",
        "marked.arrow is packed up to a fault alone: it is cut: its end mark is not there",
        "cut.arrow is not packed: its image.bytes is null",
        "marked.arrow is not packed: its image.bytes is null",
    ]) {
        assert!(sentence.contains(expected), "{sentence}");
    }
    assert_eq!((packed.files, sentences.len()), (10 + 9 + 11, 7), "{sentences:?}");
}

#[test]
fn a_damaged_page_takes_its_group_of_rows_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [_, first] = both();
    let mut bytes = fs::read(&first).unwrap();
    // Snappy's word for how much it expands to, before the picture of row 4, which begins the second group.
    let at = bytes.windows(4).position(|window| window == [0xff, 0xd8, 0xff, 4]).unwrap();
    bytes[at - 12..at].fill(0xff);
    let path = dir.path().join("damaged.parquet");
    fs::write(&path, bytes).unwrap();
    let (packed, sentences) = packed(&dir, &[path], Columns::default()).unwrap();
    assert_eq!((packed.files, sentences.len()), (6, 1), "{sentences:?}");
    assert!(sentences[0].starts_with("rows 4 to 7 of "), "{sentences:?}");
    assert_eq!(records(&dir).iter().map(|record| record.1).collect::<Vec<_>>(), [0, 1, 2, 0, 2, 0].map(Some));
}

/// Files whose bytes were changed: they are packed or refused in a sentence, and what is packed is whole.
fn spoilt() -> impl Strategy<Value = (usize, Vec<(usize, u8)>, Option<usize>)> {
    let changes = proptest::collection::vec((any::<usize>(), any::<u8>()), 0..6);
    (0..6_usize, changes, prop_oneof![Just(None), any::<usize>().prop_map(Some)])
}

proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 400, ..proptest::test_runner::Config::default() })]
    #[test]
    fn whatever_a_file_has_nothing_panics_and_what_is_packed_is_whole((which, changes, cut) in spoilt()) {
        let names = [
            "train-00000-of-00002.parquet", "deltas.parquet", "lengths.parquet", "dictionary.parquet",
            "saved/data-00000-of-00001.arrow", "words.arrow",
        ];
        let mut bytes = fs::read(made_by_pyarrow(names[which])).unwrap();
        for (at, value) in changes {
            // Most of what matters lies at the end, or at the begin.
            let size = bytes.len();
            bytes[if at % 2 == 0 { at % size } else { size - 1 - at % 700.min(size) }] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut % (bytes.len() + 1));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spoilt");
        fs::write(&path, bytes).unwrap();
        if let Ok((packed, _)) = packed(&dir, &[path], Columns::default()) {
            assert_eq!(records(&dir).len() as u64, packed.files);
        }
    }
}
