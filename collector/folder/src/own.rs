//! Folders of this user's alone, whose files may be locked and taken for our own work: another user who owned one, or might write to it,
//! could take its locks and fill it.

use crate::{Blocked, Folder, file_user};
use rustix::fd::AsFd;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;

/// What the folder may be for others: nothing that changes it. A sticky bit would not keep them from that.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Why a folder is not this user's alone.
#[derive(Debug, PartialEq, Eq)]
pub enum NotOwn {
    /// It cannot be opened, made or looked at.
    Blocked(Blocked),
    /// It belongs to another user.
    AnothersFolder,
    /// Other users may write to it.
    WritableByOthers,
}

impl From<Blocked> for NotOwn {
    fn from(blocked: Blocked) -> Self {
        NotOwn::Blocked(blocked)
    }
}

impl Folder {
    /// Opens a folder of this user's alone, and makes it where it is missing.
    ///
    /// # Errors
    /// As [`Folder::make`]; or it is another user's, or others may write to it.
    pub fn own(path: &Path) -> Result<Folder, NotOwn> {
        let folder = match Folder::open(path) {
            Err(Blocked::System(Errno::NOENT)) => made(path)?,
            opened => opened?,
        };
        let facts = rustix::fs::fstat(&folder).map_err(Blocked::System)?;
        if facts.st_uid != file_user() {
            return Err(NotOwn::AnothersFolder);
        }
        if facts.st_mode & WRITABLE_BY_OTHERS != 0 {
            return Err(NotOwn::WritableByOthers);
        }
        Ok(folder)
    }
}

fn made(path: &Path) -> Result<Folder, Blocked> {
    if let (Some(around), Some(name)) = (path.parent(), path.file_name()) {
        let around = Folder::make(around)?;
        match rustix::fs::mkdirat(&around, name, Mode::from_raw_mode(FOLDER_MODE)) {
            // Another process may have been first; what there is is looked at like everything.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(reason) => return Err(reason.into()),
        }
    }
    Folder::open(path)
}

/// Opens a plain file of a folder, through no link; one that is made is this user's alone.
///
/// # Errors
/// As openat(2); or it is no plain file.
pub fn open_plain(folder: impl AsFd, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(FILE_MODE))?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "this is no ordinary file")),
    }
}

/// Whether a lock was given, which is asked for without waiting.
///
/// # Errors
/// As flock(2).
pub fn ask_for(file: impl AsFd, lock: FlockOperation) -> io::Result<bool> {
    loop {
        match rustix::fs::flock(&file, lock) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
