//! What lies in a pack's folder.

use crate::chunk::Chunk;
use crate::deleted::DELETED;
use crate::error::{Doing, Error, Result};
use crate::id::Id;
use crate::snapshot::SNAPSHOT;
use crate::storage::UNFINISHED;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use stallscope_folder::{Folder, find};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The chunks of a pack, and what writing left unfinished.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Sorted.
    pub(crate) chunks: Vec<Id>,
    /// Names.
    pub(crate) unfinished: Vec<String>,
    pub(crate) has_snapshot: bool,
    /// Whether there is anything that no pack has.
    pub(crate) has_others: bool,
}

/// A pack's folder that is read by whom it is for: links of anybody lead there.
pub(crate) fn to_read(dir: &Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty()).doing("list", dir)
}

/// A pack's folder that is read to be shown to others: another user's link leads there where its maker may look as well.
pub(crate) fn to_show(dir: &Path) -> Result<OwnedFd> {
    find(None, dir).map_err(io::Error::from).doing("open", dir)
}

/// A pack's folder that is changed: another user's link does not lead there.
pub(crate) fn to_change(dir: &Path) -> Result<Folder> {
    is_folder(dir)?;
    Folder::open(dir).doing("open", dir)
}

/// An error where it is none, and so no pack.
pub(crate) fn is_folder(dir: &Path) -> Result<()> {
    match dir.is_dir() {
        true => Ok(()),
        false => Err(Error::Refused(format!("{} is no folder, and so no pack", dir.display()))),
    }
}

/// `dir` is for the sentence of an error, here and below.
pub(crate) fn list(folder: &impl AsFd, dir: &Path) -> Result<Listing> {
    let mut listing = Listing::default();
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(folder, ".", flags, Mode::empty()).and_then(Dir::new);
    for entry in opened.doing("list", dir)? {
        let entry = entry.doing("list", dir)?;
        let name = entry.file_name().to_bytes();
        if let Some(id) = Id::of_file_name(name) {
            listing.chunks.push(id);
        } else if name == SNAPSHOT.as_bytes() {
            listing.has_snapshot = true;
        } else if name.strip_suffix(UNFINISHED.as_bytes()).is_some_and(is_ours) {
            listing.unfinished.push(String::from_utf8_lossy(name).into_owned());
        } else if !matches!(name, b"." | b"..")
            && name != LOCK.as_bytes()
            && name != DELETED.as_bytes()
            && !name.ends_with(SET_ASIDE.as_bytes())
        {
            listing.has_others = true;
        }
    }
    listing.chunks.sort_unstable();
    Ok(listing)
}

fn is_ours(name: &[u8]) -> bool {
    let named = [SNAPSHOT, DELETED, ROWS];
    named.iter().any(|named| name == named.as_bytes()) || Id::of_file_name(name).is_some()
}

/// What a file without a name is called where there can be none.
const ROWS: &str = "rows";

/// A file in a pack's folder to write to and to read from, which is gone with this process; and what a sentence calls it. The caller holds
/// the lock.
pub(crate) fn unnamed(folder: &Folder) -> Result<(File, PathBuf)> {
    let name = format!("{ROWS}{UNFINISHED}");
    let path = folder.path().join(&name);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    if let Ok(file) = rustix::fs::openat(folder, ".", flags | OFlags::TMPFILE, mode) {
        return Ok((file.into(), path));
    }
    // As on NFS.
    let _ = folder.remove(OsStr::new(&name));
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(folder, name.as_str(), flags, mode).doing("make", &path)?;
    folder.remove(OsStr::new(&name)).doing("remove", &path)?;
    Ok((file.into(), path))
}

/// What is held while a pack is written to.
pub(crate) const LOCK: &str = "lock";
/// The end of a name that a damaged file was given.
pub(crate) const SET_ASIDE: &str = ".damaged";

/// Held until it is dropped; one process at a time has it.
pub(crate) fn lock(folder: &Folder) -> Result<File> {
    let (dir, path) = (folder.path().display(), folder.path().join(LOCK));
    // A link in a foreign pack would have an empty file made anywhere.
    let file = folder.create(OsStr::new(LOCK)).doing("make", &path)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(Error::Refused(format!("another process writes to {dir}; wait until it has ended")))
        }
        Err(error) => Err(error).doing("lock", &path),
    }
}

/// Opens an ordinary file of a pack for reading: no pipe is waited for, and no device is opened, since opening one may act. Another
/// user's link leads to what that user may read, and to nothing else: who may read more, as root, shows a mounted or extracted pack
/// to others.
pub(crate) fn open_plain_in(folder: &impl AsFd, path: &Path) -> io::Result<File> {
    // What was found, and nothing that comes in its place meanwhile, is what is opened then.
    let found = find(Some(folder.as_fd()), path)?;
    open_found(&found, || rustix::fs::openat(folder, path, TO_READ | OFlags::NOFOLLOW, Mode::empty()))
}

/// The same of a source, which may be named from anywhere.
pub(crate) fn open_source(folder: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<File> {
    let found = find(folder, path)?;
    // By its name another could be opened.
    open_found(&found, || Err(Errno::NOENT))
}

const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// `by_name` opens it where there is no /proc; it is looked at once more then.
fn open_found(found: &OwnedFd, by_name: impl FnOnce() -> Result<OwnedFd, Errno>) -> io::Result<File> {
    let no_file = || io::Error::new(io::ErrorKind::InvalidData, "this is no ordinary file");
    let is_plain = |file: &OwnedFd| {
        let facts = rustix::fs::fstat(file)?;
        Ok::<_, Errno>(FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile)
    };
    if !is_plain(found)? {
        return Err(no_file());
    }
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = match rustix::fs::open(itself, TO_READ, Mode::empty()) {
        Err(Errno::NOENT) => by_name()?,
        opened => opened?,
    };
    if !is_plain(&file)? {
        return Err(no_file());
    }
    Ok(file.into())
}

/// Reads the chunk of this id, which has to be one of this pack, if that is known.
pub(crate) fn read_chunk(folder: &impl AsFd, dir: &Path, id: Id, pack: Option<Id>) -> Result<(File, Chunk)> {
    let name = id.file_name();
    let path = dir.join(&name);
    let file = open_plain_in(folder, name.as_ref()).doing("open", &path)?;
    let chunk = Chunk::read(&file, &path)?;
    if chunk.id != id {
        return Err(Error::damaged(&path, format!("it is the chunk {} under another name", chunk.id)));
    }
    match pack {
        Some(pack) if pack != chunk.pack => Err(Error::damaged(&path, "it is a chunk of another pack")),
        _ => Ok((file, chunk)),
    }
}
