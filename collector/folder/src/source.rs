//! What is only read, in a folder that may be another user's.

use crate::walk::{FOLDER_ITSELF, names};
use crate::{Blocked, MOST_LINKS, is_ours};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const ITSELF: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// The file or folder at `path`, from the folder `from` or the current one on, to be looked at and opened for reading by its descriptor.
///
/// Links of this user and of root lead on. One of another user leads to what its maker may read as well: what is theirs, or what all
/// users may. Otherwise who packs or copies their folder would do so with files that the maker of the link has never seen.
///
/// # Errors
/// There is nothing at `path`, or another user's link leads to what that user may not read.
pub fn find(from: Option<BorrowedFd<'_>>, path: &Path) -> Result<OwnedFd, Blocked> {
    // Most paths have no link.
    if let Some(from) = from
        && let Some(found) = without_links(from, path)
    {
        return Ok(found);
    }
    let begin = |path: &Path| match from {
        Some(from) if path.is_relative() => rustix::fs::openat(from, ".", FOLDER_ITSELF, Mode::empty()),
        _ => rustix::fs::open(if path.is_absolute() { "/" } else { "." }, FOLDER_ITSELF, Mode::empty()),
    };
    let (mut at, mut to_go, mut links) = (begin(path)?, names(path), 0);
    // The makers of others' links on the way, and whether all users may pass from the first of these on.
    let (mut makers, mut is_passed_by_all) = (Vec::new(), true);
    while let Some(name) = to_go.pop() {
        if !makers.is_empty() {
            is_passed_by_all &= allows_all(&rustix::fs::fstat(&at)?, 0o001);
        }
        let next = match rustix::fs::openat(&at, &name, FOLDER_ITSELF, Mode::empty()) {
            // A file or a link. What is mounted at a folder as soon as it is asked for is mounted now.
            Err(Errno::NOTDIR | Errno::LOOP) => rustix::fs::openat(&at, &name, ITSELF, Mode::empty())?,
            opened => opened?,
        };
        let facts = rustix::fs::fstat(&next)?;
        if FileType::from_raw_mode(facts.st_mode) != FileType::Symlink {
            at = next;
            continue;
        }
        if links == MOST_LINKS {
            return Err(Errno::LOOP.into());
        }
        links += 1;
        if !is_ours(facts.st_uid) {
            makers.push(facts.st_uid);
        }
        let target = rustix::fs::readlinkat(&next, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            at = begin(target)?;
        }
        to_go.extend(names(target));
    }
    let facts = rustix::fs::fstat(&at)?;
    let needed = if FileType::from_raw_mode(facts.st_mode) == FileType::Directory { 0o005 } else { 0o004 };
    let is_for_all = is_passed_by_all && allows_all(&facts, needed);
    match makers.iter().all(|maker| is_for_all || *maker == facts.st_uid) {
        true => Ok(at),
        false => Err(Blocked::AnothersLink),
    }
}

/// `None` where there is a link, nothing at all, or a kernel that cannot tell: then it is looked for name by name.
fn without_links(from: BorrowedFd<'_>, path: &Path) -> Option<OwnedFd> {
    let open = |flags| {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(from, path, flags, Mode::empty(), resolve).ok()
    };
    let found = open(ITSELF)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&found).ok()?.st_mode) {
        FileType::Directory => open(FOLDER_ITSELF),
        // The last name itself.
        FileType::Symlink => None,
        _ => Some(found),
    }
}

fn allows_all(facts: &Stat, bits: u32) -> bool {
    facts.st_mode & bits == bits
}
