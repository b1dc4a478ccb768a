//! Snapshots whose records name what they have not: any slice of one text, in any order.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use stallscope_pack::{
    About, Disk, Id, Images, Pack, Result, SNAPSHOT, chunk_of, extract, rebuild, seal_snapshot, shown,
};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Header and one chunk.
const RECORDS_AT: usize = 96 + 32;

/// A pack of pictures of these names.
fn made(names: &[Vec<u8>]) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pack");
    fs::create_dir(&dir).unwrap();
    let id = Id::written(1, [0; 8]);
    let records: Vec<_> = names.iter().map(|name| (name.as_slice(), &b""[..], About::default())).collect();
    fs::write(dir.join(id.file_name()), chunk_of(id, Id([3; 16]), &records).unwrap()).unwrap();
    rebuild(&dir, false, &Disk, &mut |_, _| {}).unwrap();
    (root, dir)
}

fn numbered(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("{number:03}/x.jpg").into_bytes()).collect()
}

/// Has the records name these parts of `text`: where it begins, and its length.
fn name_parts(dir: &Path, text: &[u8], parts: &[(usize, usize)]) {
    let path = dir.join(SNAPSHOT);
    let mut bytes = fs::read(&path).unwrap();
    let names_bytes = u64::from_le_bytes(bytes[72..80].try_into().unwrap());
    bytes.truncate(bytes.len() - names_bytes as usize);
    bytes.extend_from_slice(text);
    for (number, (at, length)) in parts.iter().enumerate() {
        let record = RECORDS_AT + number * 64;
        bytes[record..record + 8].copy_from_slice(&(*at as u64).to_le_bytes());
        bytes[record + 52..record + 54].copy_from_slice(&(*length as u16).to_le_bytes());
    }
    seal_snapshot(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn images(dir: &Path) -> Result<Images> {
    Images::of(&Pack::open(dir).unwrap(), &[b".jpg".to_vec()])
}

/// Two classes in turn were a new one each time: 1.2 MB took 2.8 GB of a job.
#[test]
fn classes_are_in_order() {
    let (_root, dir) = made(&numbered(3));
    assert_eq!(images(&dir).unwrap().classes().len(), 3);
    name_parts(&dir, b"a/x.jpgb/x.jpg", &[(0, 7), (7, 7), (0, 7)]);
    let refused = images(&dir).unwrap_err().to_string();
    assert!(refused.contains("are not in order"), "{refused}");
}

#[test]
fn classes_have_no_more_bytes_than_their_snapshot() {
    let (_root, dir) = made(&numbered(200));
    let text = [vec![b'a'; 3000], b"/x.jpg".to_vec()].concat();
    let parts: Vec<_> = (0..200).rev().map(|begin| (begin, text.len() - begin)).collect();
    name_parts(&dir, &text, &parts);
    let refused = images(&dir).unwrap_err().to_string();
    assert!(refused.contains("name the same bytes"), "{refused}");
}

#[test]
fn a_name_is_no_longer_than_a_path() {
    let (_root, dir) = made(&numbered(2));
    let text = vec![b'x'; 5000];
    name_parts(&dir, &text, &[(0, 4096), (0, 4097)]);
    let opened = Pack::open(&dir).unwrap();
    assert!(opened.snapshot().entry(0).is_ok());
    assert!(opened.snapshot().entry(1).is_err());
}

#[test]
fn a_sentence_names_ten_classes_and_counts_the_others() {
    let names = numbered(12).into_iter().map(|name| [&name[..3], b"/x.txt"].concat());
    let (_root, dir) = made(&names.collect::<Vec<_>>());
    let refused = images(&dir).unwrap_err().to_string();
    assert!(refused.ends_with("008, 009 and 2 more"), "{refused}");
}

/// 3,000 sentences of 65,535 bytes, at five characters each, were 983 MB.
#[test]
fn a_name_is_cut_in_a_sentence() {
    assert_eq!(shown(&[b'a'; 300]).len(), 300);
    assert_eq!(shown(&["é".as_bytes(); 300].concat()), format!("{}…", "é".repeat(150)));
    let (root, dir) = made(&numbered(2));
    let text = [vec![b'/'; 4000], [&[b'd'; 300][..], b"/"].concat().repeat(14)].concat();
    name_parts(&dir, &text, &[(0, 4000), (4000, 4000)]);
    let mut sentences = Vec::new();
    let problem = &mut |sentence: &str| sentences.push(sentence.to_owned());
    extract(&Pack::open(&dir).unwrap(), &[], &root.path().join("out"), problem).unwrap();
    assert_eq!(sentences.len(), 2, "{sentences:?}");
    assert!(sentences.iter().all(|sentence| sentence.len() < 1000), "{sentences:?}");
}
