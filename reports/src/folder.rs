//! Folders of a report, which are opened once and then written into by their descriptor: whatever another user puts in
//! their place, or in that of a folder around them, what is written goes where was looked.

use crate::Error;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Links that lead to each other.
pub(crate) const MOST_LINKS: usize = 40;

const FOLDER_ITSELF: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// A folder that is open: this one it stays.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    opened: OwnedFd,
}

/// Why a folder cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// A link on the way that neither this user nor root has made.
    AnothersLink,
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
            Blocked::AnothersLink => io::Error::other("another user's link leads there"),
            Blocked::System(reason) => reason.into(),
        }
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.opened.as_fd()
    }
}

impl Folder {
    /// Opens the folder at `path`. Links of this user and of root lead on.
    pub(crate) fn open(path: &Path) -> Result<Folder, Blocked> {
        Ok(Folder { path: path.to_owned(), opened: walk(None, path, false)? })
    }

    /// The same, and makes it and the folders around it where they are missing.
    ///
    /// # Errors
    /// It cannot be made or opened, or another user's link leads there.
    pub fn make(path: &Path) -> Result<Folder, Error> {
        let opened = walk(None, path, true).map_err(|blocked| Error::at(path)(blocked.into()))?;
        Ok(Folder { path: path.to_owned(), opened })
    }

    /// Makes one at a name that nothing has.
    pub(crate) fn make_new(path: &Path) -> Result<Folder, Error> {
        let made = rustix::fs::mkdir(path, Mode::from_raw_mode(0o777))
            .and_then(|()| rustix::fs::open(path, FOLDER_ITSELF, Mode::empty()));
        let opened = made.map_err(|reason| Error::at(path)(reason.into()))?;
        Ok(Folder { path: path.to_owned(), opened })
    }

    /// The folder around the file at `path`.
    pub(crate) fn around(path: &Path) -> Result<Folder, Blocked> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Folder::open(folder)
    }

    /// The folder around what a link in this one leads to.
    pub(crate) fn around_target(&self, target: &Path) -> Result<Folder, Blocked> {
        let folder = target.parent().unwrap_or(Path::new(""));
        let opened = walk(Some(&self.opened), folder, false)?;
        Ok(Folder { path: self.path.join(folder), opened })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_empty(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = rustix::fs::openat(&self.opened, ".", flags, Mode::empty()).and_then(Dir::new);
        let is_entry = |name: &[u8]| name != b"." && name != b"..";
        entries.map_or(true, |entries| !entries.flatten().any(|entry| is_entry(entry.file_name().to_bytes())))
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
        let path = self.path.join(name);
        let at = Error::at(&path);
        // A name that nobody can take first; it is no longer than any that the file may have. Keys of hash tables are random
        // numbers of the system's.
        let part = format!(".stallscope.{:016x}.part", RandomState::new().hash_one(0));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.opened, &part, flags, Mode::from_raw_mode(0o666));
        let mut out = BufWriter::new(File::from(file.map_err(|reason| at(reason.into()))?));
        let written = write(&mut out).and_then(|()| {
            out.flush().map_err(&at)?;
            drop(out);
            let renamed = rustix::fs::renameat(&self.opened, &part, &self.opened, name);
            renamed.map_err(|reason| at(reason.into()))
        });
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.opened, &part, AtFlags::empty());
        }
        written
    }
}

/// Opens the folder at `path`, from the folder `from` or the current one on, name by name, so that every link on the way is
/// looked at before it leads on.
fn walk(from: Option<&OwnedFd>, path: &Path, make: bool) -> Result<OwnedFd, Blocked> {
    let begin = |path: &Path| match from {
        Some(from) if path.is_relative() => rustix::fs::openat(from, ".", FOLDER_ITSELF, Mode::empty()),
        _ => rustix::fs::open(if path.is_absolute() { "/" } else { "." }, FOLDER_ITSELF, Mode::empty()),
    };
    let (mut at, mut to_go, mut links) = (begin(path)?, names(path), 0);
    while let Some(name) = to_go.pop() {
        let mut next = rustix::fs::openat(&at, &name, FOLDER_ITSELF, Mode::empty());
        if make && next.as_ref().err() == Some(&Errno::NOENT) {
            match rustix::fs::mkdirat(&at, &name, Mode::from_raw_mode(0o777)) {
                // Another may have been first: what there is now is looked at like everything.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(reason) => return Err(reason.into()),
            }
            next = rustix::fs::openat(&at, &name, FOLDER_ITSELF, Mode::empty());
        }
        match next {
            Ok(folder) => at = folder,
            Err(Errno::NOTDIR | Errno::LOOP) => match Entry::at(&at, Path::new(&name))? {
                Entry::OwnLink(_) if links == MOST_LINKS => return Err(Errno::LOOP.into()),
                Entry::OwnLink(target) => {
                    links += 1;
                    if target.is_absolute() {
                        at = begin(&target)?;
                    }
                    to_go.extend(names(&target));
                }
                Entry::AnothersLink => return Err(Blocked::AnothersLink),
                Entry::Other => return Err(Errno::NOTDIR.into()),
            },
            Err(reason) => return Err(reason.into()),
        }
    }
    Ok(at)
}

/// The names that `path` goes by, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}

/// What has a name.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A link of this user or of root, and what it says.
    OwnLink(PathBuf),
    AnothersLink,
    Other,
}

impl Entry {
    /// It is opened first, as another could come in its place.
    pub(crate) fn at(folder: impl AsFd, name: &Path) -> Result<Entry, Errno> {
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

pub(crate) fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == stallscope_store::file_user()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn own_links_lead_on_and_what_is_missing_is_made() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir(at("a")).unwrap();
        symlink("a", at("relative")).unwrap();
        symlink(at("relative"), at("absolute")).unwrap();
        symlink(at("absolute/b"), at("dangling")).unwrap();
        assert_eq!(Folder::open(&at("absolute/b")).unwrap_err(), Blocked::System(Errno::NOENT));
        for path in ["absolute/b/c", "dangling/../b/d", "./a//b/e/", "new/er"] {
            Folder::make(&at(path)).unwrap();
            Folder::open(&at(path)).unwrap();
        }
        assert_eq!(fs::read_dir(at("a/b")).unwrap().count(), 3);
        assert!(
            !Folder::open(&at("a")).unwrap().is_empty() && Folder::open(&at("new/er")).unwrap().is_empty()
        );
    }

    #[test]
    fn what_is_no_folder_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::write(at("file"), "").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("there", at("here")).unwrap();
        symlink("here", at("there")).unwrap();
        let cases = [
            ("file", Errno::NOTDIR),
            ("file/x", Errno::NOTDIR),
            ("link", Errno::NOTDIR),
            ("here", Errno::LOOP),
        ];
        for (path, reason) in cases {
            assert_eq!(Folder::open(&at(path)).unwrap_err(), Blocked::System(reason), "{path}");
            assert!(Folder::make(&at(path)).is_err(), "{path}");
        }
    }
}
