//! Folders that a user named to be written into. They are opened once and then written into by their descriptor: whatever another
//! user puts in their place, or in that of a folder around them, what is written goes where was looked. And what is read of such folders.

mod own;
mod source;
mod walk;

pub use own::{NotOwn, ask_for, open_plain};
pub use source::find;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Links that lead to each other.
pub const MOST_LINKS: usize = 40;

/// A folder that is open: this one it stays.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    opened: OwnedFd,
}

/// Why a folder cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub enum Blocked {
    /// A link on the way that neither this user nor root has made.
    AnothersLink,
    /// The kernel refused.
    System(Errno),
}

impl From<Errno> for Blocked {
    fn from(reason: Errno) -> Self {
        Blocked::System(reason)
    }
}

impl From<Blocked> for io::Error {
    fn from(blocked: Blocked) -> Self {
        match blocked {
            Blocked::AnothersLink => {
                io::Error::other("another user's link leads there; name the folder itself")
            }
            Blocked::System(reason) => reason.into(),
        }
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opened.as_fd()
    }
}

impl From<Folder> for OwnedFd {
    fn from(folder: Folder) -> OwnedFd {
        folder.opened
    }
}

impl Folder {
    /// Opens the folder at `path`. Links of this user and of root lead on.
    ///
    /// # Errors
    /// There is none, or another user's link leads there.
    pub fn open(path: &Path) -> Result<Folder, Blocked> {
        Ok(Folder { path: path.to_owned(), opened: walk::walk(None, path, false)? })
    }

    /// The same, and makes it and the folders around it where they are missing.
    ///
    /// # Errors
    /// It cannot be made or opened, or another user's link leads there.
    pub fn make(path: &Path) -> Result<Folder, Blocked> {
        Ok(Folder { path: path.to_owned(), opened: walk::walk(None, path, true)? })
    }

    /// Makes one at a name that nothing has.
    ///
    /// # Errors
    /// Something has the name, or it cannot be made.
    pub fn make_new(path: &Path) -> Result<Folder, Errno> {
        rustix::fs::mkdir(path, Mode::from_raw_mode(0o777))?;
        let opened = rustix::fs::open(path, walk::FOLDER_ITSELF, Mode::empty())?;
        Ok(Folder { path: path.to_owned(), opened })
    }

    /// The folder around the file at `path`.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn around(path: &Path) -> Result<Folder, Blocked> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Folder::open(folder)
    }

    /// The folder around what a link in this one leads to.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn around_target(&self, target: &Path) -> Result<Folder, Blocked> {
        let folder = target.parent().unwrap_or(Path::new(""));
        let opened = walk::walk(Some(&self.opened), folder, false)?;
        Ok(Folder { path: self.path.join(folder), opened })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is nothing in it, as far as it can be listed.
    pub fn is_empty(&self) -> bool {
        let is_entry = |name: &[u8]| name != b"." && name != b"..";
        self.to_list()
            .and_then(Dir::new)
            .map_or(true, |entries| !entries.flatten().any(|entry| is_entry(entry.file_name().to_bytes())))
    }

    fn to_list(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.opened, ".", flags, Mode::empty())
    }

    /// Makes its file `name`, which must not be there yet.
    ///
    /// # Errors
    /// Something has the name, or the file cannot be made.
    pub fn create_new(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&self.opened, name, flags, Mode::from_raw_mode(0o666))?))
    }

    /// Opens its file `name` for writing, and makes it where it is not there. No link is followed and no pipe waited for.
    ///
    /// # Errors
    /// It is no plain file, or cannot be opened or made.
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = flags | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.opened, name, flags, Mode::from_raw_mode(0o666))?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "this is no ordinary file")),
        }
    }

    /// Renames a file within it; one of the new name is replaced in one step.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.opened, from, &self.opened, to)?)
    }

    /// The same, where nothing has the new name. A file system that cannot promise this is looked at before.
    ///
    /// # Errors
    /// Something has the new name; else as rename(2).
    pub fn rename_new(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let folder = &self.opened;
        match rustix::fs::renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) if !self.has(to) => self.rename(from, to),
            Err(Errno::INVAL | Errno::NOSYS) => Err(Errno::EXIST.into()),
            other => Ok(other?),
        }
    }

    /// Whether something has this name in it, be it a link that leads nowhere.
    pub fn has(&self, name: &OsStr) -> bool {
        rustix::fs::statat(&self.opened, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes its file `name`.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.opened, name, AtFlags::empty())?)
    }

    /// Makes what it lists durable.
    ///
    /// # Errors
    /// As fsync(2); none where the file system cannot sync folders, and so has nothing to make durable there.
    pub fn sync(&self) -> io::Result<()> {
        match self.to_list().and_then(rustix::fs::fsync) {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(reason) => Err(reason.into()),
        }
    }
}

/// What has a name.
#[derive(Debug)]
pub enum Entry {
    /// A link of this user or of root, and what it says.
    OwnLink(PathBuf),
    /// Another user's link.
    AnothersLink,
    /// Anything else.
    Other,
}

impl Entry {
    /// It is opened first, as another could come in its place.
    ///
    /// # Errors
    /// There is nothing of this name, or it cannot be looked at.
    pub fn at(folder: impl AsFd, name: &Path) -> Result<Entry, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(folder, name, flags, Mode::empty())?;
        let facts = rustix::fs::fstat(&entry)?;
        if FileType::from_raw_mode(facts.st_mode) != FileType::Symlink {
            return Ok(Entry::Other);
        }
        if !is_ours(facts.st_uid) {
            return Ok(Entry::AnothersLink);
        }
        let target = rustix::fs::readlinkat(&entry, "", Vec::new())?;
        Ok(Entry::OwnLink(OsStr::from_bytes(target.as_bytes()).into()))
    }
}

/// Whether `uid` is this user or root.
pub fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == file_user()
}

/// The user as whom this thread makes files: with sudo the caller.
pub fn file_user() -> u32 {
    // SAFETY: no user has this number, so that nothing is set; the one that was in force is returned.
    let user = unsafe { libc::setfsuid(u32::MAX) } as u32;
    // A container may forbid the call.
    if user == u32::MAX { rustix::process::geteuid().as_raw() } else { user }
}

#[cfg(test)]
mod tests;
