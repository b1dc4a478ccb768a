//! Finds the files of a folder and of those below it, through links as a training job would.

use crate::error::{Error, Result};
use crate::names::fault_of;
use rustix::fs::{Dir, DirEntry, FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use stallscope_folder::{Blocked, find};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names under which one folder is packed: with two links a folder, each to the next, 36 folders have 2^36.
const MOST_NAMES: u32 = 100;

/// Names of all files below `source`, which is open as `root`, in no order. `problem` hears a sentence for each thing that is none and
/// cannot be looked into; `found` says of each whether there may be more.
///
/// # Errors
/// There were more than there may be.
pub(super) fn files(
    source: &Path,
    root: &OwnedFd,
    problem: &mut dyn FnMut(String),
    found: &mut dyn FnMut(Vec<u8>) -> bool,
) -> Result<()> {
    let too_many = || {
        Error::Refused(format!(
            "the files of {} have longer names than so many files have; pack a part of them, from a folder further down",
            source.display()
        ))
    };
    let mut open: Vec<Folder> = Vec::new();
    // Only those of which a name goes through a link.
    let mut entered: HashMap<(u64, u64), u32> = HashMap::new();
    match Folder::open(root, Vec::new()) {
        Ok(folder) => open.push(folder),
        Err(error) => problem(format!("{} cannot be listed: {error}", source.display())),
    }
    let shown = |name: &[u8]| source.join(OsStr::from_bytes(name));
    while let Some(folder) = open.last_mut() {
        let entry = match folder.next() {
            Some(Ok(entry)) => entry,
            Some(Err(error)) => {
                problem(format!("{} cannot be listed to its end: {error}", shown(&folder.name).display()));
                open.pop();
                continue;
            }
            None => {
                open.pop();
                continue;
            }
        };
        let mut name = folder.name.clone();
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(entry.file_name().to_bytes());
        let path = shown(&name);
        if let Some(fault) = fault_of(&name) {
            problem(format!("{} is not packed under this name: {fault}", path.display()));
            continue;
        }
        // An ordinary file needs no second look; where the file system does not say what it is, neither does this.
        if entry.file_type() == FileType::RegularFile {
            if !found(name) {
                return Err(too_many());
            }
            continue;
        }
        let inside = match find(Some(root.as_fd()), Path::new(OsStr::from_bytes(&name))) {
            Ok(inside) => inside,
            Err(blocked) => {
                problem(unfound(&path, &blocked, entry.file_type()));
                continue;
            }
        };
        match fstat(&inside)
            .map(|facts| (FileType::from_raw_mode(facts.st_mode), (facts.st_dev, facts.st_ino)))
        {
            Ok((FileType::RegularFile, _)) => {
                if !found(name) {
                    return Err(too_many());
                }
            }
            Ok((FileType::Directory, key)) if open.iter().any(|folder| folder.key == key) => {
                problem(format!(
                    "{} is not packed: this link leads back to a folder around it",
                    path.display()
                ));
            }
            Ok((FileType::Directory, key)) => match Folder::open(&inside, name) {
                Ok(mut inner) => {
                    let is_link = entry.file_type() == FileType::Symlink;
                    inner.linked = is_link || open.last().is_some_and(|outer| outer.linked);
                    let names = if inner.linked {
                        *entered.entry(key).and_modify(|names| *names += 1).or_insert(1)
                    } else {
                        0
                    };
                    if names <= MOST_NAMES {
                        open.push(inner);
                    } else {
                        problem(format!(
                            "{} is not packed: links lead to this folder under {MOST_NAMES} other names",
                            path.display()
                        ));
                    }
                }
                Err(error) => problem(format!("{} cannot be listed: {error}", path.display())),
            },
            Ok(_) => problem(format!("{} is not packed: it is neither a file nor a folder", path.display())),
            Err(error) => problem(format!("{} cannot be read: {error}", path.display())),
        }
    }
    Ok(())
}

fn unfound(path: &Path, blocked: &Blocked, kind: FileType) -> String {
    let path = path.display();
    match blocked {
        Blocked::AnothersLink => format!(
            "{path} is not packed: another user's link leads there, to what that user may not read; make a link of your own"
        ),
        Blocked::System(error) if kind == FileType::Symlink => {
            format!("{path} is not packed: this link leads nowhere ({error})")
        }
        Blocked::System(error) => format!("{path} cannot be read: {error}"),
    }
}

struct Folder {
    name: Vec<u8>,
    key: (u64, u64),
    /// Its name goes through a link.
    linked: bool,
    left: Dir,
}

impl Folder {
    /// `name`: from the source on.
    fn open(folder: &OwnedFd, name: Vec<u8>) -> Result<Folder, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(folder, ".", flags, Mode::empty())?;
        let facts = fstat(&opened)?;
        Ok(Folder { name, key: (facts.st_dev, facts.st_ino), linked: false, left: Dir::new(opened)? })
    }

    fn next(&mut self) -> Option<Result<DirEntry, Errno>> {
        loop {
            match self.left.read()? {
                Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                entry => return Some(entry),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use crate::{Disk, Notice, Options, pack};

    /// 60,000 hard links, 1.3 MB, had taken `pack` 0.9 GB.
    #[test]
    fn long_names_of_many_files_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let (source, long) = (root.path().join("source"), ["x".repeat(200).as_str(); 5].join("/"));
        let folder = source.join(long);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(source.join("first"), "").unwrap();
        let links = |numbers: std::ops::Range<u32>| {
            for number in numbers {
                std::fs::hard_link(source.join("first"), folder.join(number.to_string())).unwrap();
            }
        };
        let packed = |into: &str| {
            let mut sentences = 0;
            let tell = &mut |notice: Notice<'_>| sentences += u32::from(matches!(notice, Notice::Problem(_)));
            let packed = pack(source.as_path(), &root.path().join(into), Options::default(), &Disk, tell);
            packed.map(|packed| (packed.files, sentences)).map_err(|error| error.to_string())
        };
        links(0..5);
        // Further down than any: it is left out, and the others are packed.
        std::fs::create_dir_all(source.join("a/".repeat(102))).unwrap();
        assert_eq!(packed("some"), Ok((6, 1)));
        links(5..40);
        assert!(packed("all").is_err_and(|error| error.contains("pack a part of them")));
    }
}
