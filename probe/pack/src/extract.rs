//! Writes records back into files.

use crate::error::{Doing, Error, Result};
use crate::names::{fault_of, shown};
use crate::pack::Pack;
use crate::snapshot::Entry;
use rustix::fs::{self, AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use stallscope_folder::Folder;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
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
    let root = Folder::make(into).doing("make", into)?;
    let mut extracted = Extracted::default();
    let mut left = 0_u64;
    for number in 0..pack.snapshot().chunks() {
        left = left.saturating_add(pack.snapshot().chunk(number).map_or(0, |chunk| chunk.bytes));
    }
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
        let wanted = names.iter().position(|name| is_at_or_below(entry.name, name));
        match wanted {
            Some(at) => found[at] = true,
            None if names.is_empty() => {}
            None => continue,
        }
        extracted.asked += 1;
        // Records lie beside each other: a snapshot that has the same bytes as many records is forged, to fill a disk.
        let Some(rest) = left.checked_sub(entry.stored_bytes) else {
            let dir = pack.dir().display();
            return Err(Error::Refused(format!(
                "the snapshot of {dir} describes more bytes than its chunks have; `stallscope pack rebuild {dir}` makes another one"
            )));
        };
        left = rest;
        match one(pack, &entry, &root) {
            Ok(bytes) => {
                extracted.files += 1;
                extracted.bytes += bytes;
            }
            Err(error) => problem(&error.to_string()),
        }
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

fn one(pack: &Pack, entry: &Entry<'_>, root: &Folder) -> Result<u64> {
    if let Some(fault) = fault_of(entry.name) {
        let name = shown(entry.name);
        return Err(Error::Refused(format!("{name:?} is not extracted under this name: {fault}")));
    }
    let path = root.path().join(OsStr::from_bytes(entry.name));
    let (folder, name, mut file) = make(root, entry.name).doing("make", &path)?;
    let written = pack.stream(entry, &mut |piece| file.write_all(piece).doing("write", &path));
    let written = written.and_then(|()| touch(&file, entry.mtime_ns).doing("write", &path));
    if let Err(error) = written {
        // Half a file would be taken for a whole one. By its path another user's link may lead elsewhere by now.
        let _ = fs::unlinkat(&folder, name, AtFlags::empty());
        return Err(error);
    }
    Ok(entry.bytes)
}

/// Makes a file below `root`, and the folders on the way; gives the folder around it, its name there and the file. No link that
/// lies there is followed.
fn make<'a>(root: &Folder, name: &'a [u8]) -> Result<(OwnedFd, &'a OsStr, File), Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
    let mut folder = fs::openat(root, ".", flags, Mode::empty())?;
    let mut parts = name.split(|byte| *byte == b'/').peekable();
    while let Some(part) = parts.next() {
        let part = OsStr::from_bytes(part);
        if parts.peek().is_none() {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = fs::openat(&folder, part, flags, Mode::from_raw_mode(0o666))?;
            return Ok((folder, part, File::from(file)));
        }
        match fs::mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
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
