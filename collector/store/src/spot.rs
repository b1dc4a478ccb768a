//! Files by their names in a folder that is held open: who owns a folder on the way there may exchange it for a link to any other one.
//! By the folder's descriptor all that is done is done where was looked.

use crate::files::beside;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use stallscope_folder::{Folder, file_user};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A name in a folder that is open.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    folder: Arc<Folder>,
    path: PathBuf,
}

impl Spot {
    /// That of `path`, whose folder is found by no link of another user's.
    pub(crate) fn named(path: &Path) -> io::Result<Spot> {
        let name = path.file_name().ok_or_else(|| io::Error::other("it has no file name"))?;
        let folder = hold(Folder::around(path)?)?;
        Ok(Spot { path: itself(&folder).join(name), folder })
    }

    /// That of the file which was found; `None` where it has gone meanwhile, or its name is another file's.
    pub(crate) fn of(found: &OwnedFd) -> io::Result<Option<Spot>> {
        let spot = Spot::named(&read_itself(found)?).and_then(|spot| match spot.facts()? {
            facts if are_one(&facts, &rustix::fs::fstat(found)?) => Ok(Some(spot)),
            _ => Ok(None),
        });
        match spot {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other,
        }
    }

    /// Another name in the same folder.
    pub(crate) fn sibling(&self, name: impl AsRef<OsStr>) -> Spot {
        Spot { folder: self.folder.clone(), path: self.path.with_file_name(name.as_ref()) }
    }

    /// Leads there by the folder's descriptor, as long as this is held: SQLite's connections by it are to be closed before.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// The folder, in the same way.
    pub(crate) fn folder(&self) -> PathBuf {
        itself(&self.folder)
    }

    /// Where that is by now, for people and for other processes.
    pub(crate) fn shown(&self) -> io::Result<PathBuf> {
        let folder = read_itself(&self.folder)?;
        // A folder that was removed is named as well.
        match are_one(&rustix::fs::stat(&folder)?, &rustix::fs::fstat(&self.folder)?) {
            true => Ok(folder.join(self.name())),
            false => Err(Errno::NOENT.into()),
        }
    }

    fn facts(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.folder, self.name(), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// A file that this process has made.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) spot: Spot,
    /// As long as it is open no other file has its inode. It is open for nothing: closing it takes no lock of SQLite's along.
    file: OwnedFd,
}

impl Made {
    /// Makes it, and opens it to be written. Its command line and the names of its files are nobody else's until its owner says so.
    pub(crate) fn create(spot: Spot) -> io::Result<(Made, File)> {
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&spot.path)?;
        let file = rustix::fs::open(itself(&written), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok((Made { spot, file }, written))
    }

    /// Whether it is still there.
    ///
    /// # Errors
    /// Its name is another file's.
    pub(crate) fn is_there(&self) -> io::Result<bool> {
        match self.spot.facts() {
            Ok(facts) if are_one(&facts, &rustix::fs::fstat(&self.file)?) => Ok(true),
            Ok(_) => Err(io::Error::other("another file has come to its name")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Puts it in the place of another one in its folder.
    pub(crate) fn replace(&self, other: &Made) -> io::Result<()> {
        let (folder, from, to) = (&self.spot.folder, self.spot.name(), other.spot.name());
        match other.is_there()? {
            true => folder.rename(from, to)?,
            false => folder.rename_new(from, to)?,
        }
        // Not every network file system lets a folder be synced; the file itself is.
        let _ = folder.sync();
        Ok(())
    }

    pub(crate) fn remove(&self) {
        if matches!(self.is_there(), Ok(true)) {
            let _ = self.spot.folder.remove(self.spot.name());
        }
    }

    /// Removes it with what SQLite keeps beside it.
    pub(crate) fn remove_database(&self) {
        // What lies beside another file is not ours.
        if self.is_there().is_err() {
            return;
        }
        for path in ["-wal", "-shm"].map(|suffix| beside(&self.spot.path, suffix)) {
            if fs::symlink_metadata(&path).is_ok_and(|file| file.uid() == file_user()) {
                let _ = fs::remove_file(path);
            }
        }
        self.remove();
    }
}

/// The folder's descriptor that this process has already, if any: SQLite removes what lies beside a file by the path of the connection
/// that was the first to have it open, and another folder may have that number once its descriptor is closed.
fn hold(folder: Folder) -> io::Result<Arc<Folder>> {
    static HELD: Mutex<Vec<Weak<Folder>>> = Mutex::new(Vec::new());
    let (facts, path) = (rustix::fs::fstat(&folder)?, read_itself(&folder)?);
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.retain(|other| other.strong_count() > 0);
    // Mounted elsewhere as well it may be read-only there.
    let is_this = |other: &Arc<Folder>| {
        rustix::fs::fstat(other).is_ok_and(|other| are_one(&other, &facts))
            && read_itself(other).is_ok_and(|other| other == path)
    };
    if let Some(found) = held.iter().filter_map(Weak::upgrade).find(is_this) {
        return Ok(found);
    }
    let folder = Arc::new(folder);
    held.push(Arc::downgrade(&folder));
    Ok(folder)
}

fn are_one(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// By which path it is reached, as long as it is open.
pub(crate) fn itself(opened: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()).into()
}

fn read_itself(opened: &impl AsFd) -> io::Result<PathBuf> {
    let itself = itself(opened);
    fs::read_link(&itself).map_err(|error| io::Error::other(format!("{}: {error}", itself.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let spot = |name: &str| Spot::named(&folder.path().join(name)).unwrap();
        let first = spot("a");
        let second = spot("b");
        assert_eq!(first.path().parent(), second.path().parent());
        drop(first);
        assert_eq!(spot("a").path().parent(), second.path().parent());
        assert_eq!(second.shown().unwrap(), folder.path().canonicalize().unwrap().join("b"));
        folder.close().unwrap();
        assert!(second.shown().is_err());
    }

    #[test]
    fn nothing_else_is_removed_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let make = |name: &str| Made::create(Spot::named(&at(name)).unwrap()).unwrap().0;
        let (one, other) = (make("one"), make("other"));
        fs::remove_file(at("one")).unwrap();
        for name in ["one", "one-wal", "one-shm"] {
            fs::write(at(name), "theirs").unwrap();
        }
        one.remove_database();
        assert!(other.replace(&one).is_err());
        for name in ["one", "one-wal", "one-shm"] {
            assert_eq!(fs::read_to_string(at(name)).unwrap(), "theirs", "{name}");
        }
        fs::remove_file(at("one")).unwrap();
        other.replace(&one).unwrap();
        assert!(at("one").exists() && !at("other").exists());
    }
}
