//! The way to a folder, name by name.

use crate::{Blocked, Entry, MOST_LINKS};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::path::{Component, Path};

pub(crate) const FOLDER_ITSELF: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Opens the folder at `path`, from the folder `from` or the current one on, so that every link on the way is looked at before it
/// leads on.
pub(crate) fn walk(from: Option<&OwnedFd>, path: &Path, make: bool) -> Result<OwnedFd, Blocked> {
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
pub(crate) fn names(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}
