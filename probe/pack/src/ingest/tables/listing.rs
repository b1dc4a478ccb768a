//! Which files are tables.

use crate::error::{Doing, Error, Result};
use crate::folder::open_source;
use crate::names::shown;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use stallscope_folder::find;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const ENDINGS: [&[u8]; 2] = [b".parquet", b".arrow"];
/// What lies beside tables and describes them.
const BESIDE: [&[u8]; 5] = [b".json", b".md", b".txt", b".lock", b".crc"];
/// Of `save_to_disk`: of one table, and of several in folders.
const STATE: &[u8] = b"state.json";
const SPLITS: &[u8] = b"dataset_dict.json";
const SAVED: &[u8] = b"data-";

/// Whether these are Parquet or Arrow files, by their names; or a folder of such and of nothing else.
pub fn is_tables(paths: &[PathBuf]) -> bool {
    match paths {
        [folder] if folder.is_dir() => Listed::of(folder).is_ok_and(|listed| listed.is_tables()),
        paths => paths.iter().any(|path| path.file_name().is_some_and(|name| is_table(name.as_bytes()))),
    }
}

fn is_table(name: &[u8]) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Paths and files of tables; of a folder those in it, sorted.
pub(super) fn opened(paths: &[PathBuf]) -> Result<Vec<(PathBuf, File)>> {
    let open = |path: &PathBuf| Ok((path.clone(), open_source(None, path).doing("open", path)?));
    match paths {
        [folder] if folder.is_dir() => {
            let listed = Listed::of(folder).doing("list", folder)?;
            listed.is_one(folder)?;
            let open = |name: &Vec<u8>| {
                let (name, path) = (OsStr::from_bytes(name), folder.join(OsStr::from_bytes(name)));
                let file = open_source(Some(listed.root.as_fd()), Path::new(name)).doing("open", &path)?;
                Ok((path, file))
            };
            listed.tables.iter().map(open).collect()
        }
        paths => paths.iter().map(open).collect(),
    }
}

struct Listed {
    root: OwnedFd,
    tables: Vec<Vec<u8>>,
    folders: Vec<Vec<u8>>,
    has_splits: bool,
    has_others: bool,
}

impl Listed {
    fn of(folder: &Path) -> io::Result<Listed> {
        let root = find(None, folder)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = Dir::new(rustix::fs::openat(&root, ".", flags, Mode::empty())?)?;
        let (tables, folders) = (Vec::new(), Vec::new());
        let mut listed = Listed { root, tables, folders, has_splits: false, has_others: false };
        let mut is_saved = false;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            is_saved |= name == STATE;
            listed.has_splits |= name == SPLITS;
            if matches!(name[0], b'.' | b'_') {
                continue;
            } else if entry.file_type() == FileType::Directory {
                listed.folders.push(name.to_vec());
            } else if is_table(name) {
                listed.tables.push(name.to_vec());
            } else {
                let is_beside = BESIDE.iter().any(|ending| name.ends_with(ending));
                // As README and LICENSE.
                listed.has_others |= !is_beside && !name.iter().all(u8::is_ascii_uppercase);
            }
        }
        // Beside them may be what `map` kept.
        if is_saved && listed.tables.iter().any(|name| name.starts_with(SAVED)) {
            listed.tables.retain(|name| name.starts_with(SAVED));
        }
        listed.tables.sort_unstable();
        listed.folders.sort_unstable();
        Ok(listed)
    }

    fn is_tables(&self) -> bool {
        self.has_splits || !self.tables.is_empty() && self.folders.is_empty() && !self.has_others
    }

    /// An error where it has several sets, which a training script does not mean to mix.
    fn is_one(&self, folder: &Path) -> Result<()> {
        let shown_folder = folder.display();
        if self.has_splits {
            let splits: Vec<String> = self.folders.iter().map(|name| shown(name)).collect();
            let first = splits
                .last()
                .map_or_else(String::new, |split| format!(", as {}", folder.join(split).display()));
            return Err(Error::Refused(format!(
                "{shown_folder} has several splits ({}): pack one of them{first}",
                splits.join(", ")
            )));
        }
        let mut kinds: BTreeMap<Vec<u8>, &[u8]> = BTreeMap::new();
        for name in &self.tables {
            kinds.entry(without_numbers(name)).or_insert(name);
        }
        let mut kinds = kinds.into_values();
        match (kinds.next(), kinds.next()) {
            (Some(one), Some(other)) => Err(Error::Refused(format!(
                "{shown_folder} has files of several sets or splits, as {} and {}: name the files of one",
                shown(one),
                shown(other)
            ))),
            _ => Ok(()),
        }
    }
}

/// What the names of a set's files have in common.
fn without_numbers(name: &[u8]) -> Vec<u8> {
    name.iter().filter(|byte| !byte.is_ascii_digit()).copied().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Whether a folder with these files is one of tables, and what of it is packed or why not.
    fn listed(files: &[&str]) -> (bool, Result<Vec<String>, String>) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"").unwrap();
        }
        let paths = [dir.path().to_owned()];
        let name = |(path, _): (PathBuf, File)| path.file_name().unwrap().to_str().unwrap().to_owned();
        let opened = opened(&paths).map(|opened| opened.into_iter().map(name).collect());
        let shown_folder = format!("{}", dir.path().display());
        (is_tables(&paths), opened.map_err(|error| error.to_string().replace(&shown_folder, "SET")))
    }

    #[test]
    fn a_folder_of_tables_has_nothing_but_them_and_what_describes_them() {
        let two = ["train-00001-of-00002.parquet", "train-00000-of-00002.parquet"];
        let found = Ok(vec![two[1].to_owned(), two[0].to_owned()]);
        assert_eq!(listed(&two), (true, found.clone()));
        let beside = ["README.md", "LICENSE", ".gitattributes", "_SUCCESS", ".cache/x", "dataset_info.json"];
        assert_eq!(listed(&[&two[..], &beside].concat()), (true, found));
        for other in ["picture.jpg", "more/x.parquet", "script.py"] {
            assert!(!listed(&[two[0], other]).0, "{other}");
        }
        assert!(!listed(&["README.md"]).0);
    }

    #[test]
    fn what_save_to_disk_wrote_is_packed_without_what_map_kept() {
        let saved = ["state.json", "dataset_info.json", "data-00000-of-00001.arrow", "cache-0f3a.arrow"];
        assert_eq!(listed(&saved), (true, Ok(vec!["data-00000-of-00001.arrow".into()])));
        let splits = ["dataset_dict.json", "test/state.json", "train/state.json"];
        let refused = "SET has several splits (test, train): pack one of them, as SET/train";
        assert_eq!(listed(&splits), (true, Err(refused.into())));
    }

    #[test]
    fn two_splits_are_not_mixed() {
        for (files, refused) in [
            (
                ["c-train-00000-of-00001.parquet", "c-test-00000-of-00001.parquet"],
                "c-test-00000-of-00001.parquet and c-train-00000-of-00001.parquet",
            ),
            (["a.parquet", "a.arrow"], "a.arrow and a.parquet"),
        ] {
            let sentence =
                format!("SET has files of several sets or splits, as {refused}: name the files of one");
            assert_eq!(listed(&files), (true, Err(sentence)));
        }
    }
}
