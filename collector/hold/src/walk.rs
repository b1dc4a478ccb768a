//! Paths of the job, walked without waiting for its user.
//!
//! What this process has locked stays in memory until its last thread has ended, and a thread that waits for a lock of the kernel's
//! ends by no signal. A job's user can have such a lock for as long as they like: who lists a folder, or writes to a file, has that
//! inode's, also while their own memory is brought in, and that may lie in a file of a FUSE file system of theirs. So
//!
//! - a path is walked by what the kernel has in its cache alone (RESOLVE_CACHED): no folder is searched, no file system is asked, and
//!   what is not there is not known now. Only an `O_PATH` descriptor comes of it, which opens and closes no file;
//! - attributes are taken from that, those that are in memory (AT_STATX_DONT_SYNC): ext4, XFS, Btrfs and overlayfs take no lock for them,
//!   and FUSE is not asked;
//! - which file system it is the kernel's table of mounts tells by the mount's number (mounts.rs), as `fstatfs` asks FUSE;
//! - what is to be watched or read is opened from the descriptor, by its number in this process's own folder of /proc, where nobody else
//!   may list. There is no further path to walk; permission is asked of the inode (its access list, under a lock of the file system's
//!   that no one has while their memory is brought in), and `open` of the four file systems takes no lock of the inode's. F2FS does, so
//!   that nothing of it is held. Who has a lease on a file is not waited for (O_NONBLOCK), and a file with a lease not opened (leases.rs).
//!
//! What is held is found as long as its path is the same: its mapping keeps it and all folders above it in the kernel's cache.

use crate::mounts::Mounts;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, fstatfs, makedev, open, openat2,
    statx,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The kernel looks into its cache without a lock, and gives up where mounts or names change just then, anywhere on the machine: each
/// try takes some microseconds.
const TRIES: u32 = 20;

/// What a path leads to.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) descriptor: OwnedFd,
    pub(crate) identity: Identity,
    form: FileType,
    /// `None` before Linux 5.8.
    mount: Option<u64>,
}

/// Which file it is, and in which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    written: (i64, u32),
}

impl Identity {
    fn from(attributes: &Statx) -> Identity {
        Identity {
            dev: makedev(attributes.stx_dev_major, attributes.stx_dev_minor),
            ino: attributes.stx_ino,
            size: attributes.stx_size,
            written: (attributes.stx_mtime.tv_sec, attributes.stx_mtime.tv_nsec),
        }
    }

    pub(crate) fn of(descriptor: &OwnedFd) -> Result<Identity, Errno> {
        attributes(descriptor).map(|attributes| Identity::from(&attributes))
    }
}

fn attributes(descriptor: &OwnedFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(descriptor, c"", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

/// By a path without any link. [`Errno::AGAIN`]: that is not known now.
pub(crate) fn find(path: &Path) -> Result<Found, Errno> {
    let descriptor = walk(path)?;
    let attributes = attributes(&descriptor)?;
    Ok(Found {
        identity: Identity::from(&attributes),
        form: FileType::from_raw_mode(attributes.stx_mode.into()),
        mount: (attributes.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(attributes.stx_mnt_id),
        descriptor,
    })
}

fn walk(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let without_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match openat2(CWD, path, flags, Mode::empty(), without_links | ResolveFlags::CACHED) {
            Err(Errno::AGAIN) => {}
            // Before Linux 5.12 each walk may wait.
            Err(Errno::INVAL) => return openat2(CWD, path, flags, Mode::empty(), without_links),
            // Before 5.6.
            Err(Errno::NOSYS) => return open(path, flags, Mode::empty()),
            walked => return walked,
        }
    }
    Err(Errno::AGAIN)
}

impl Found {
    /// A file with content.
    pub(crate) fn is_plain(&self) -> bool {
        self.form == FileType::RegularFile && self.identity.size > 0
    }

    pub(crate) fn is_folder(&self) -> bool {
        self.form == FileType::Directory
    }
}

/// From what a path leads to, on to what may be opened.
#[derive(Debug)]
pub(crate) struct Onwards {
    /// Leads to this process's descriptors by their numbers.
    descriptors: PathBuf,
    mounts: Mounts,
}

impl Onwards {
    /// `are_users`: overlays are those of the job's user, over whatever.
    pub(crate) fn new(descriptors: &str, are_users: bool) -> io::Result<Onwards> {
        let descriptors = PathBuf::from(descriptors);
        Ok(Onwards { mounts: Mounts::new(&descriptors, are_users)?, descriptors })
    }

    /// Of which file system it is, as in linux/magic.h. `None`: not known now.
    pub(crate) fn kind(&mut self, found: &Found) -> Option<i64> {
        match found.mount {
            Some(mount) => self.mounts.kind(mount),
            None => Some(fstatfs(&found.descriptor).ok()?.f_type),
        }
    }

    pub(crate) fn path(&self, found: &Found) -> PathBuf {
        self.descriptors.join(found.descriptor.as_raw_fd().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{KeptLocked, ends, folder};

    #[test]
    fn what_the_kernel_does_not_have_in_its_cache_is_not_known_now() {
        let Some(dir) = folder() else { return };
        let path = dir.path().join("a");
        assert_eq!(find(&path).unwrap_err(), Errno::AGAIN);
        assert!(std::fs::metadata(&path).is_err());
        assert_eq!(find(&path).unwrap_err(), Errno::NOENT, "another one has looked there");
        std::fs::write(&path, "x").unwrap();
        assert!(find(&path).is_ok_and(|found| found.is_plain() && found.identity.size == 1));
        assert!(find(dir.path()).is_ok_and(|found| found.is_folder() && !found.is_plain()));
    }

    #[test]
    fn a_folder_that_its_user_keeps_locked_is_not_waited_for() {
        let Some(dir) = folder() else { return };
        let (above, path) = (dir.path().join("above"), dir.path().join("above/class/a"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "x").unwrap();
        std::fs::rename(above.join("class"), above.join("class2")).unwrap();
        let Some(_kept) = KeptLocked::new(&above) else { return };
        let (waits, moved) = (path.clone(), above.join("class2/a"));
        assert_eq!(ends(move || find(&path).map(|_| ())), Some(Err(Errno::AGAIN)));
        assert_eq!(ends(move || find(&moved).map(|_| ())), Some(Ok(())));
        assert!(ends(move || std::fs::metadata(waits)).is_none(), "it is not locked");
    }

    #[test]
    fn a_file_system_is_known_by_its_mount() {
        let mut onwards = Onwards::new("/proc/self/fd", false).unwrap();
        for path in ["/proc", "/proc/self/task", "/"] {
            let Ok(found) = find(&std::fs::canonicalize(path).unwrap()) else { continue };
            let asked = fstatfs(&found.descriptor).unwrap().f_type;
            let expected = if crate::locked::keeps(asked).is_ok() { asked } else { 0 };
            assert_eq!(onwards.kind(&found), Some(expected), "{path}");
            assert_eq!(onwards.kind(&Found { mount: Some(u64::MAX), ..found }), None);
        }
    }
}
