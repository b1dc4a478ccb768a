//! Folders of a report: what is written into one comes whole or not at all.

use crate::Error;
use rustix::fd::{AsFd, BorrowedFd};
use stallscope_folder::Blocked;
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufWriter, Write};
use std::path::Path;

/// A folder that is open: this one it stays.
#[derive(Debug)]
pub struct Folder(stallscope_folder::Folder);

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Folder {
    /// Opens the folder at `path`. Links of this user and of root lead on.
    pub(crate) fn open(path: &Path) -> Result<Folder, Blocked> {
        stallscope_folder::Folder::open(path).map(Folder)
    }

    /// The same, and makes it and the folders around it where they are missing.
    ///
    /// # Errors
    /// It cannot be made or opened, or another user's link leads there.
    pub fn make(path: &Path) -> Result<Folder, Error> {
        let made = stallscope_folder::Folder::make(path);
        made.map(Folder).map_err(|blocked| Error::at(path)(blocked.into()))
    }

    /// Makes one at a name that nothing has.
    pub(crate) fn make_new(path: &Path) -> Result<Folder, Error> {
        let made = stallscope_folder::Folder::make_new(path);
        made.map(Folder).map_err(|reason| Error::at(path)(reason.into()))
    }

    /// The folder around the file at `path`.
    pub(crate) fn around(path: &Path) -> Result<Folder, Blocked> {
        stallscope_folder::Folder::around(path).map(Folder)
    }

    /// The folder around what a link in this one leads to.
    pub(crate) fn around_target(&self, target: &Path) -> Result<Folder, Blocked> {
        self.0.around_target(target).map(Folder)
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes its file `name` by way of another beside it, which then takes its place, also that of a link.
    ///
    /// # Errors
    /// The file cannot be written, or `write` failed; then what was there is still there.
    pub(crate) fn replace(
        &self,
        name: &OsStr,
        write: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let path = self.path().join(name);
        let at = Error::at(&path);
        // A name that nobody can take first; it is no longer than any that the file may have. Keys of hash tables are random
        // numbers of the system's.
        let part = format!(".stallscope.{:016x}.part", RandomState::new().hash_one(0));
        let part = OsStr::new(&part);
        let mut out = BufWriter::new(self.0.create_new(part).map_err(&at)?);
        let written = write(&mut out).and_then(|()| {
            out.flush().map_err(&at)?;
            drop(out);
            self.0.rename(part, name).map_err(&at)
        });
        if written.is_err() {
            let _ = self.0.remove(part);
        }
        written
    }
}
