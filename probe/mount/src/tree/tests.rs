#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use stallscope_pack::{Chunk, Deleted, Id, Record, build, seal_snapshot};

/// A snapshot with files of these names, whatever names they are.
fn bytes(names: &[&[u8]]) -> Vec<u8> {
    let record = |name: &&[u8]| Record {
        name: name.to_vec(),
        offset: 64,
        stored_bytes: 0,
        bytes: 0,
        mtime_ns: 0,
        crc: 0,
        label: None,
        codec: 0,
    };
    let records = names.iter().map(record).collect();
    let id = Id([1; 16]);
    let chunk = Chunk { id, pack: id, bytes: 1000, index_crc: 0, has_labels: false, records };
    build(id, &[chunk], &Deleted::default()).unwrap()
}

fn parsed(bytes: Vec<u8>) -> Snapshot {
    Snapshot::parse(bytes, Path::new(SNAPSHOT)).unwrap()
}

/// 14 MB of names of two thousand folders had kept a mount busy for 8 s before it was there.
#[test]
fn a_name_in_more_folders_than_any_takes_no_look_up() {
    let deep = |folders| [b"a/".repeat(folders), b"x".to_vec()].concat();
    let snapshot = parsed(bytes(&[&deep(100), &deep(102), &deep(2000)]));
    let tree = Tree::of(&snapshot).unwrap();
    let all = listed(&snapshot, &tree, 0);
    assert_eq!((all.len(), tree.folders.len()), (101, 101));
    assert!(all.contains(&deep(100)));
}

/// All paths of files and, with `/` at their end, of folders, as they are listed.
fn listed(snapshot: &Snapshot, tree: &Tree, number: usize) -> Vec<Vec<u8>> {
    let (path, folder) = (tree.path(number), tree.folder(number).unwrap());
    let below = |part: &[u8]| match path.is_empty() {
        true => part.to_vec(),
        false => [&path, &b"/"[..], part].concat(),
    };
    let mut names = Vec::new();
    for child in &folder.folders {
        let part = &tree.folder(*child).unwrap().part;
        assert_eq!(tree.find(snapshot, number, part).unwrap(), Some(Node::Folder(*child)));
        names.push(below(&[part, &b"/"[..]].concat()));
        names.extend(listed(snapshot, tree, *child));
    }
    for record in folder.files.clone() {
        let Ok(entry) = snapshot.entry(record) else { continue };
        if let Some(part) = tree.file(number, &path, &entry) {
            assert_eq!(tree.find(snapshot, number, part).unwrap(), Some(Node::File(record)));
            names.push(below(part));
        }
    }
    names
}

fn all(names: &[&[u8]]) -> (Vec<Vec<u8>>, usize) {
    let snapshot = parsed(bytes(names));
    let tree = Tree::of(&snapshot).unwrap();
    (listed(&snapshot, &tree, 0), tree.hidden())
}

#[test]
fn folders_are_those_that_files_lie_in() {
    let names: [&[u8]; 7] =
        [b"readme", b"cat/1", b"cat/2", b"cat/a/deep/x\xff", b"cat-b/1", b"dog/\xfe/1", b"z"];
    let (mut found, hidden) = all(&names);
    found.sort();
    let expected: [&[u8]; 13] = [
        b"cat-b/",
        b"cat-b/1",
        b"cat/",
        b"cat/1",
        b"cat/2",
        b"cat/a/",
        b"cat/a/deep/",
        b"cat/a/deep/x\xff",
        b"dog/",
        b"dog/\xfe/",
        b"dog/\xfe/1",
        b"readme",
        b"z",
    ];
    assert_eq!((found, hidden), (expected.map(<[u8]>::to_vec).to_vec(), 0));
}

#[test]
fn each_file_of_many_is_found_by_skipping() {
    let names: Vec<Vec<u8>> =
        (0..3000).map(|number| format!("{:02}/{number}", number * number % 37).into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let (found, _) = all(&names);
    let mut files: Vec<&[u8]> =
        found.iter().map(Vec::as_slice).filter(|name| !name.ends_with(b"/")).collect();
    files.sort_unstable();
    let mut names = names.clone();
    names.sort_unstable();
    assert_eq!(files, names);
}

#[test]
fn names_that_cannot_be_below_a_folder_are_hidden() {
    let long = [&b"a/"[..], &[b'x'; 256]].concat();
    let names: [&[u8]; 9] =
        [b"a/1", b"../up", b"/etc/passwd", b"/x", b"a//b", b"b/../c", b".", b"nul\0/1", &long];
    let (found, hidden) = all(&names);
    assert_eq!(found, [&b"a/"[..], b"a/1"]);
    assert_eq!(hidden, 5, "whole folders of them");
    // A file that became a folder.
    let (found, _) = all(&[b"a", b"a/1"]);
    assert_eq!(found, [&b"a/"[..], b"a/1"]);
}

#[test]
fn a_damaged_record_hides_itself_alone() {
    let names: Vec<Vec<u8>> = (0..40).map(|number| format!("c/{number:02}").into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    for spoilt in 0..40 {
        let mut bytes = bytes(&names);
        // Behind the header and one chunk.
        bytes[96 + 32 + 64 * spoilt + 20] ^= 1;
        let snapshot = parsed(bytes);
        let tree = Tree::of(&snapshot).unwrap();
        assert_eq!(listed(&snapshot, &tree, 0).len(), 40, "a folder and 39 files");
    }
}

#[test]
fn numbers_stand_for_what_they_were_given_for() {
    for node in [Node::Folder(0), Node::Folder(7), Node::File(0), Node::File(u32::MAX as usize)] {
        assert_eq!(Node::of_inode(node.inode()), Some(node));
    }
    assert_eq!(Node::of_inode(0), None);
}

#[test]
fn whatever_a_snapshot_says_its_folders_are_listed_or_refused() {
    let names: [&[u8]; 6] = [b"b/2", b"b/1", b"a/x/y", b"a/x/z", b"c", b"a/w"];
    let whole = bytes(&names);
    let mut listings = 0;
    for at in 96..whole.len() {
        for bit in 0..8 {
            let mut spoilt = whole.clone();
            spoilt[at] ^= 1 << bit;
            // As somebody would who means it.
            seal_snapshot(&mut spoilt);
            let Ok(snapshot) = Snapshot::parse(spoilt, Path::new(SNAPSHOT)) else { continue };
            let Ok(tree) = Tree::of(&snapshot) else { continue };
            for number in (0..).take_while(|number| tree.folder(*number).is_some()) {
                let folder = tree.folder(number).unwrap();
                assert!(folder.parent <= number && folder.files.end <= names.len());
                let path = tree.path(number);
                assert!(path.is_empty() || fault_of(&path).is_none());
                for entry in folder.files.clone().filter_map(|record| snapshot.entry(record).ok()) {
                    let _ = tree.file(number, &path, &entry);
                }
                let _ = tree.find(&snapshot, number, b"x");
            }
            listings += 1;
        }
    }
    assert!(listings > 1000, "{listings}");
}

#[test]
fn a_snapshot_names_no_more_folders_than_a_data_set_has() {
    let names: Vec<Vec<u8>> =
        (0..700).map(|number| [format!("{number:03}").as_bytes(), &b"/b".repeat(100)].concat()).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let refused = Tree::of(&parsed(bytes(&names))).unwrap_err().to_string();
    assert!(refused.contains("more than 66936 folders"), "{refused}");
}

#[test]
fn a_snapshot_of_holes_is_refused_early() {
    let names: Vec<Vec<u8>> = (0..10_100).map(|number| format!("c/{number:05}").into_bytes()).collect();
    let mut bytes = bytes(&names.iter().map(Vec::as_slice).collect::<Vec<_>>());
    // Behind the header and one chunk.
    bytes[96 + 32..96 + 32 + 64 * names.len()].fill(0);
    let refused = Tree::of(&parsed(bytes)).unwrap_err().to_string();
    assert!(refused.contains("more than 10000 of its records are no records"), "{refused}");
}
