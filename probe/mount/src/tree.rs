//! The folders of a pack. A pack has names of files alone, sorted so that the files of a folder are one run of numbers; what is
//! kept in memory is a few words a folder, however many files there are.

use stallscope_pack::{Entry, Error, MOST_DAMAGED, Result, SNAPSHOT, Snapshot, fault_of, parted};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// The longest name within a folder, in bytes, that Linux's programs expect.
const MOST_PART_BYTES: usize = 255;

/// The numbers of folders follow those of any possible file, the root's apart.
const FOLDERS_FROM: u64 = 1 << 33;
const ROOT: u64 = 1;
const FILES_FROM: u64 = 2;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// By its place among the folders; the first is the root.
    Folder(usize),
    /// By the number of its record.
    File(usize),
}

impl Node {
    /// The number by which the kernel knows it, the same each time that this state of the pack is mounted.
    pub(crate) fn inode(self) -> u64 {
        match self {
            Node::Folder(0) => ROOT,
            Node::Folder(number) => FOLDERS_FROM + number as u64,
            Node::File(record) => FILES_FROM + record as u64,
        }
    }

    pub(crate) fn of_inode(inode: u64) -> Option<Node> {
        match inode {
            0 => None,
            ROOT => Some(Node::Folder(0)),
            FOLDERS_FROM.. => usize::try_from(inode - FOLDERS_FROM).ok().map(Node::Folder),
            file => usize::try_from(file - FILES_FROM).ok().map(Node::File),
        }
    }
}

/// A folder; its path is that of its parent and its own part.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) part: Vec<u8>,
    pub(crate) parent: usize,
    /// Records among which its own files are.
    pub(crate) files: Range<usize>,
    /// Folders in it.
    pub(crate) folders: Vec<usize>,
}

/// All folders of a pack.
#[derive(Debug)]
pub(crate) struct Tree {
    folders: Vec<Folder>,
    by_part: HashMap<(usize, Vec<u8>), usize>,
    /// Records whose names cannot be below a folder, or are damaged.
    hidden: usize,
}

impl Tree {
    pub(crate) fn of(snapshot: &Snapshot) -> Result<Tree> {
        let root = Folder { part: Vec::new(), parent: 0, files: 0..0, folders: Vec::new() };
        let mut tree = Tree { folders: vec![root], by_part: HashMap::new(), hidden: 0 };
        let (mut at, mut last, mut damaged) = (0, None, 0);
        let most = most_folders(snapshot.records());
        while at < snapshot.records() {
            // What is damaged is not listed; `pack verify` names it.
            let Ok(entry) = snapshot.entry(at) else {
                damaged += 1;
                if damaged > MOST_DAMAGED {
                    return Err(in_snapshot(format!(
                        "more than {MOST_DAMAGED} of its records are no records"
                    )));
                }
                tree.hidden += 1;
                at += 1;
                continue;
            };
            let (folder, _) = parted(entry.name);
            let end = end_of(snapshot, at, folder);
            if !folder.is_empty() && !is_path(folder) {
                tree.hidden += end - at;
            } else {
                let number = tree.made(folder, most)?;
                let files = &mut tree.folders[number].files;
                match last {
                    // A damaged record lay between.
                    Some(last) if last == number => files.end = end,
                    _ if files.start == files.end => *files = at..end,
                    _ => {
                        let what = "its records are not in order; `stallscope pack rebuild` makes it again";
                        return Err(in_snapshot(what.into()));
                    }
                }
                last = Some(number);
            }
            at = end;
        }
        Ok(tree)
    }

    /// The folder of this path, which is made with those on the way to it, as long as there are no more than `most`.
    fn made(&mut self, path: &[u8], most: usize) -> Result<usize> {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        let mut parent = 0;
        for part in parts {
            let next = self.folders.len();
            if next > most {
                return Err(in_snapshot(format!(
                    "its files lie in more than {most} folders; `stallscope pack extract` takes them out"
                )));
            }
            let number = *self.by_part.entry((parent, part.to_vec())).or_insert(next);
            if number == next {
                self.folders.push(Folder { part: part.to_vec(), parent, files: 0..0, folders: Vec::new() });
                self.folders[parent].folders.push(number);
            }
            parent = number;
        }
        Ok(parent)
    }

    /// How many records have names that are not shown, before their last parts are looked at.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden
    }

    pub(crate) fn folder(&self, number: usize) -> Option<&Folder> {
        self.folders.get(number)
    }

    /// What is called so in a folder.
    pub(crate) fn find(&self, snapshot: &Snapshot, parent: usize, part: &[u8]) -> Result<Option<Node>> {
        if let Some(number) = self.by_part.get(&(parent, part.to_vec())) {
            return Ok(Some(Node::Folder(*number)));
        }
        if self.folders.get(parent).is_none() || !is_part(part) {
            return Ok(None);
        }
        let mut name = self.path(parent);
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(part);
        Ok(snapshot.find(&name)?.map(Node::File))
    }

    /// The file of a record, as it is called in this folder; none where the record is of another folder, or is not shown.
    pub(crate) fn file<'a>(&self, parent: usize, path: &[u8], entry: &Entry<'a>) -> Option<&'a [u8]> {
        let (folder, part) = parted(entry.name);
        let is_shown = folder == path && is_part(part) && fault_of(entry.name).is_none();
        (is_shown && !self.by_part.contains_key(&(parent, part.to_vec()))).then_some(part)
    }

    /// A folder's path from the root on, without `/` at its ends.
    pub(crate) fn path(&self, number: usize) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut at = number;
        // A parent has a smaller number: this ends.
        while let Some(folder) = self.folders.get(at).filter(|_| at != 0) {
            parts.push(folder.part.as_slice());
            at = folder.parent;
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

/// Folders are kept in memory, some hundred bytes each, and a record of 64 bytes may name two thousand of them, as names of records
/// may lie in one another. Two for each file, and some, are those of any data set.
fn most_folders(records: usize) -> usize {
    records.saturating_mul(2).saturating_add(1 << 16).min(1 << 22)
}

fn in_snapshot(what: String) -> Error {
    Error::Damaged { path: SNAPSHOT.into(), what }
}

/// Behind the last record of the folder that `begin` is in.
fn end_of(snapshot: &Snapshot, begin: usize, folder: &[u8]) -> usize {
    let is_in = |number| snapshot.entry(number).map(|entry| parted(entry.name).0 == folder);
    let records = snapshot.records();
    let gallop = || {
        let (mut low, mut step) = (begin, 1);
        let mut high = loop {
            let next = low.saturating_add(step).min(records);
            if next == records || !is_in(next)? {
                break next;
            }
            (low, step) = (next, step * 2);
        };
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match is_in(middle)? {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok::<_, Error>(high)
    };
    // Among damaged records nothing can be skipped.
    gallop().unwrap_or_else(|_| {
        let others = (begin + 1..records).find(|number| !is_in(*number).unwrap_or(false));
        others.unwrap_or(records)
    })
}

fn is_path(path: &[u8]) -> bool {
    fault_of(path).is_none() && path.split(|byte| *byte == b'/').all(is_part)
}

fn is_part(part: &[u8]) -> bool {
    part.len() <= MOST_PART_BYTES && !part.contains(&b'/') && fault_of(part).is_none()
}

/// The path of the snapshot, in errors that the tree makes.
pub(crate) fn in_pack(error: Error, dir: &Path) -> Error {
    match error {
        Error::Damaged { path, what } if path == Path::new(SNAPSHOT) => {
            Error::Damaged { path: dir.join(path), what }
        }
        other => other,
    }
}

/// What is listed of a snapshot from elsewhere is below its folders, and found by its name.
#[cfg(fuzzing)]
pub fn list_any(snapshot: &Snapshot) {
    let Ok(tree) = Tree::of(snapshot) else { return };
    for (number, folder) in tree.folders.iter().enumerate().take(64) {
        assert!(folder.parent <= number && folder.files.end <= snapshot.records());
        let path = tree.path(number);
        assert!(path.is_empty() || is_path(&path));
        for record in folder.files.clone().take(64) {
            let Ok(entry) = snapshot.entry(record) else { continue };
            let Some(part) = tree.file(number, &path, &entry) else { continue };
            let _ = tree.find(snapshot, number, part);
        }
    }
}

#[cfg(test)]
mod tests;
