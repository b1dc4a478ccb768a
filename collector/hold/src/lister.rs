//! A process of its own that lists folders, as to list one is to wait for what the job's user may have locked for good (walk.rs). It has
//! nothing locked, and where it waits so, no folder is listed any more, and that is all.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, open, openat2, statat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Of a path, in bytes.
const LONGEST: usize = 4096;
/// Descriptors below that are this process's own where it begins.
const DESCRIPTORS: i32 = 1024;

#[derive(Debug)]
pub(crate) struct Lister {
    lister: OwnedFd,
}

impl Lister {
    /// To be called while this process has one thread. It ends with the last descriptor of this one.
    pub(crate) fn start() -> Result<Lister, Errno> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (lister, holder) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        // SAFETY: there is one thread, so that nobody else has a lock, as of the allocator, which nobody would give back in the child; it
        // runs nothing of its parent's and ends below.
        match unsafe { libc::fork() } {
            ..0 => Err(Errno::AGAIN),
            0 => {
                drop(lister);
                list_all(&holder);
                // SAFETY: it ends, and runs no one's handlers.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(Lister { lister }),
        }
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
    for other in (0..DESCRIPTORS).filter(|other| *other != holder.as_raw_fd()) {
        // SAFETY: its end of a pipe would keep the other from seeing that the holder has ended; nothing here uses any of them.
        unsafe { libc::close(other) };
    }
    let _ = setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: Some(0) });
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
