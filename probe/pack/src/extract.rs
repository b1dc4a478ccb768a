//! Writes records back into files.

mod bounds;
#[cfg(test)]
mod tests;

use crate::error::{Doing, Error, Result};
use crate::names::{fault_of, shown};
use crate::pack::Pack;
use crate::snapshot::Entry;
use bounds::{Bounds, Sparse, Used};
use rustix::fs::{self, AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use stallscope_folder::Folder;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How many files were written, of how many, and how many bytes they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extracted {
    /// Records that were to be written.
    pub asked: u64,
    /// Files that were written.
    pub files: u64,
    /// Of these files.
    pub bytes: u64,
}

/// Writes all records, or those of these names and below these folders, into files below `into`. What is there already is
/// never written over, and another user's link to `into` is not followed. `problem` hears a sentence for each that could not be
/// written.
pub fn extract(
    pack: &Pack,
    names: &[Vec<u8>],
    into: &Path,
    problem: &mut dyn FnMut(&str),
) -> Result<Extracted> {
    within(Bounds::default(), pack, names, into, problem)
}

fn within(
    mut bounds: Bounds,
    pack: &Pack,
    names: &[Vec<u8>],
    into: &Path,
    problem: &mut dyn FnMut(&str),
) -> Result<Extracted> {
    let root = Folder::make(into).doing("make", into)?;
    let mut extracted = Extracted::default();
    let mut found = vec![false; names.len()];
    for entry in pack.snapshot().entries() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                problem(&error.to_string());
                extracted.asked += 1;
                continue;
            }
        };
        // A copy, as the file that it lies in may be written meanwhile: what is checked has to be what is made.
        let name = entry.name.to_vec();
        let entry = Entry { name: &name, ..entry };
        let wanted = names.iter().position(|name| is_at_or_below(entry.name, name));
        match wanted {
            Some(at) => found[at] = true,
            None if names.is_empty() => {}
            None => continue,
        }
        extracted.asked += 1;
        bounds.begin(&entry, pack.dir())?;
        let mut used = Used::default();
        match one(pack, &entry, &root, &mut used) {
            Ok(()) => {
                extracted.files += 1;
                extracted.bytes += entry.bytes;
            }
            Err(error) => problem(&error.to_string()),
        }
        bounds.end(&entry, &used, pack.dir())?;
    }
    for (name, _) in names.iter().zip(found).filter(|(_, found)| !found) {
        extracted.asked += 1;
        problem(&format!("{} is not in {}", shown(name), pack.dir().display()));
    }
    Ok(extracted)
}

/// Whether a name is this one, or of a file in this folder or below it.
pub fn is_at_or_below(name: &[u8], wanted: &[u8]) -> bool {
    let wanted = wanted.strip_suffix(b"/").unwrap_or(wanted);
    name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

fn one(pack: &Pack, entry: &Entry<'_>, root: &Folder, used: &mut Used) -> Result<()> {
    if let Some(fault) = fault_of(entry.name) {
        let name = shown(entry.name);
        return Err(Error::Refused(format!("{name:?} is not extracted under this name: {fault}")));
    }
    #[cfg(test)]
    tests::is_checked();
    // For sentences alone.
    let path = root.path().join(shown(entry.name));
    let (folder, name, file) = make(root, entry.name, &mut used.folders).doing("make", &path)?;
    let mut sparse = Sparse::of(&file);
    let written = pack.stream(entry, &mut |piece| {
        used.bytes += sparse.write(piece).doing("write", &path)?;
        Ok(())
    });
    let written = written.and_then(|()| sparse.finish().doing("write", &path));
    let written = written.and_then(|()| touch(&file, entry.mtime_ns).doing("write", &path));
    if written.is_err() {
        // Half a file would be taken for a whole one. By its path another user's link may lead elsewhere by now.
        let _ = fs::unlinkat(&folder, name, AtFlags::empty());
    }
    written
}

/// Makes a file below `root`, and the folders on the way, which it counts; gives the folder around it, its name there and the
/// file. No link that lies there is followed, and no part climbs out.
fn make<'a>(root: &Folder, name: &'a [u8], folders: &mut u64) -> Result<(OwnedFd, &'a OsStr, File), Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
    let mut folder = fs::openat(root, ".", flags, Mode::empty())?;
    let mut parts = name.split(|byte| *byte == b'/').peekable();
    while let Some(part) = parts.next() {
        // Once more, where it is used: to climb out takes no more than one part.
        if fault_of(part).is_some() {
            return Err(Errno::INVAL);
        }
        let part = OsStr::from_bytes(part);
        if parts.peek().is_none() {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = fs::openat(&folder, part, flags, Mode::from_raw_mode(0o666))?;
            return Ok((folder, part, File::from(file)));
        }
        match fs::mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
            Ok(()) => *folders += 1,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        folder = fs::openat(&folder, part, flags, Mode::empty())?;
    }
    Err(Errno::NOENT)
}

/// Gives it its source's time, so that a build or a copy that goes by times finds it as it was.
fn touch(file: &File, mtime_ns: i64) -> Result<(), Errno> {
    let time =
        Timespec { tv_sec: mtime_ns.div_euclid(1_000_000_000), tv_nsec: mtime_ns.rem_euclid(1_000_000_000) };
    match fs::futimens(file, &Timestamps { last_access: time, last_modification: time }) {
        // A time that the file system cannot have is none to fail for.
        Err(Errno::INVAL | Errno::PERM | Errno::OPNOTSUPP) => Ok(()),
        other => other,
    }
}
