//! Finds the files of a folder and of those below it, through links as a training job would.

use crate::names::MOST_NAME_BYTES;
use std::fs::{Metadata, ReadDir};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names of all files below `source`, in no order. `problem` hears a sentence for each thing that is none and cannot be
/// looked into.
pub(super) fn files(source: &Path, problem: &mut dyn FnMut(String), found: &mut dyn FnMut(Vec<u8>)) {
    let mut open: Vec<Folder> = Vec::new();
    let described = std::fs::metadata(source);
    match described.and_then(|described| Folder::open(source.to_owned(), Vec::new(), &described)) {
        Ok(folder) => open.push(folder),
        Err(error) => problem(format!("{} cannot be listed: {error}", source.display())),
    }
    while let Some(folder) = open.last_mut() {
        let entry = match folder.left.next() {
            Some(Ok(entry)) => entry,
            Some(Err(error)) => {
                problem(format!("{} cannot be listed to its end: {error}", folder.path.display()));
                open.pop();
                continue;
            }
            None => {
                open.pop();
                continue;
            }
        };
        let path = entry.path();
        let mut name = folder.name.clone();
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(entry.file_name().as_bytes());
        if name.len() > MOST_NAME_BYTES {
            problem(format!("{} is not packed: its name is longer than any path", path.display()));
            continue;
        }
        // An ordinary file needs no second look; where the file system does not say what it is, neither does this.
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            found(name);
            continue;
        }
        match std::fs::metadata(&path) {
            Ok(described) if described.is_file() => found(name),
            Ok(described) if described.is_dir() => {
                let key = (described.dev(), described.ino());
                if open.iter().any(|folder| folder.key == key) {
                    problem(format!(
                        "{} is not packed: this link leads back to a folder around it",
                        path.display()
                    ));
                    continue;
                }
                match Folder::open(path, name, &described) {
                    Ok(folder) => open.push(folder),
                    Err(error) => problem(format!("{} cannot be listed: {error}", entry.path().display())),
                }
            }
            Ok(_) => problem(format!("{} is not packed: it is neither a file nor a folder", path.display())),
            Err(error) if entry.path().is_symlink() => {
                problem(format!("{} is not packed: this link leads nowhere ({error})", path.display()));
            }
            Err(error) => problem(format!("{} cannot be read: {error}", path.display())),
        }
    }
}

struct Folder {
    path: PathBuf,
    name: Vec<u8>,
    key: (u64, u64),
    left: ReadDir,
}

impl Folder {
    fn open(path: PathBuf, name: Vec<u8>, described: &Metadata) -> std::io::Result<Folder> {
        let left = std::fs::read_dir(&path)?;
        Ok(Folder { path, name, key: (described.dev(), described.ino()), left })
    }
}
