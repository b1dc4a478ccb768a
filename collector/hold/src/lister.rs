//! A process apart that lists folders, as to list one is to wait for what the job's user may have locked for good (walk.rs). Where it
//! waits so, no folder is listed any more, and that is all.

use crate::apart;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, open, openat2, statat};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Of a path, in bytes.
const LONGEST: usize = 4096;

#[derive(Debug)]
pub(crate) struct Lister {
    lister: OwnedFd,
}

impl Lister {
    /// To be called while this process has one thread.
    pub(crate) fn start() -> Result<Lister, Errno> {
        apart::start(list_all).map(|lister| Lister { lister })
    }

    /// `false`: not now, as it is busy or has ended.
    pub(crate) fn asks(&self, folder: &Path) -> bool {
        let path = folder.as_os_str().as_bytes();
        send(&self.lister, path, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
    }

    /// A folder of those in a folder that was asked for, where there is one by now.
    pub(crate) fn next(&self) -> Option<PathBuf> {
        let mut path = [0; LONGEST];
        let (length, _) = recv(&self.lister, &mut path[..], RecvFlags::DONTWAIT).ok()?;
        (length > 0).then(|| Path::new(OsStr::from_bytes(&path[..length])).to_owned())
    }
}

fn list_all(holder: &OwnedFd) {
    let mut path = [0; LONGEST];
    while let Ok((length @ 1.., _)) = recv(holder, &mut path[..], RecvFlags::empty()) {
        if list(holder, Path::new(OsStr::from_bytes(&path[..length]))) == Err(Errno::PIPE) {
            return;
        }
    }
}

/// Has each of its folders in the kernel's cache, where the holder finds them.
fn list(holder: &OwnedFd, folder: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let without_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = match openat2(CWD, folder, flags, Mode::empty(), without_links) {
        // Before Linux 5.6.
        Err(Errno::NOSYS) => open(folder, flags, Mode::empty()),
        opened => opened,
    }?;
    for entry in Dir::read_from(&opened)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if entry.file_type() == FileType::Directory && name != "." && name != ".." {
            let _ = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW);
            let sent = send(holder, folder.join(name).as_os_str().as_bytes(), SendFlags::NOSIGNAL);
            // A path that is too long leads nowhere.
            if sent == Err(Errno::PIPE) {
                return Err(Errno::PIPE);
            }
        }
    }
    Ok(())
}
