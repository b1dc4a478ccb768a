//! What lies in a pack's folder.

use crate::chunk::Chunk;
use crate::deleted::DELETED;
use crate::error::{Doing, Error, Result};
use crate::id::Id;
use crate::snapshot::SNAPSHOT;
use crate::storage::UNFINISHED;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The chunks of a pack, and what writing left unfinished.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Sorted.
    pub(crate) chunks: Vec<Id>,
    pub(crate) unfinished: Vec<PathBuf>,
    pub(crate) has_snapshot: bool,
    /// Whether there is anything that no pack has.
    pub(crate) has_others: bool,
}

pub(crate) fn list(dir: &Path) -> Result<Listing> {
    let mut listing = Listing::default();
    for entry in std::fs::read_dir(dir).doing("list", dir)? {
        let name = entry.doing("list", dir)?.file_name();
        let bytes = name.as_bytes();
        if let Some(id) = Id::of_file_name(bytes) {
            listing.chunks.push(id);
        } else if bytes == SNAPSHOT.as_bytes() {
            listing.has_snapshot = true;
        } else if bytes.strip_suffix(UNFINISHED.as_bytes()).is_some_and(is_ours) {
            listing.unfinished.push(dir.join(&name));
        } else if bytes != LOCK.as_bytes()
            && bytes != DELETED.as_bytes()
            && !bytes.ends_with(SET_ASIDE.as_bytes())
        {
            listing.has_others = true;
        }
    }
    listing.chunks.sort_unstable();
    Ok(listing)
}

fn is_ours(name: &[u8]) -> bool {
    name == SNAPSHOT.as_bytes() || name == DELETED.as_bytes() || Id::of_file_name(name).is_some()
}

/// What is held while a pack is written to.
pub(crate) const LOCK: &str = "lock";
/// The end of a name that a damaged file was given.
pub(crate) const SET_ASIDE: &str = ".damaged";

/// Held until it is dropped; one process at a time has it.
pub(crate) fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path).doing("make", &path)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let dir = dir.display();
            Err(Error::Refused(format!("another process writes to {dir}; wait until it has ended")))
        }
        Err(error) => Err(error).doing("lock", &path),
    }
}

/// Opens an ordinary file for reading: no device, and no pipe is waited for.
pub(crate) fn open_plain(path: &Path) -> std::io::Result<File> {
    let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "this is no ordinary file")),
    }
}

/// Reads the chunk of this id, which has to be one of this pack, if that is known.
pub(crate) fn read_chunk(dir: &Path, id: Id, pack: Option<Id>) -> Result<(File, Chunk)> {
    let path = dir.join(id.file_name());
    let file = open_plain(&path).doing("open", &path)?;
    let chunk = Chunk::read(&file, &path)?;
    if chunk.id != id {
        return Err(Error::damaged(&path, format!("it is the chunk {} under another name", chunk.id)));
    }
    match pack {
        Some(pack) if pack != chunk.pack => Err(Error::damaged(&path, "it is a chunk of another pack")),
        _ => Ok((file, chunk)),
    }
}
