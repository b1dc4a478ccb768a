//! Processes of their own for what may wait for the job's user for good (walk.rs): they have nothing locked and may lock nothing, so that one
//! of them that stays costs nobody memory.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::os::fd::{AsRawFd, OwnedFd};

/// Descriptors below that are this process's own where it begins.
const DESCRIPTORS: i32 = 1024;

/// Has `work` done by a process of its own, with the other end of the socket that this returns. To be called while this process has one
/// thread. Its work is to end with the last descriptor of this end.
pub(crate) fn start(work: impl FnOnce(&OwnedFd)) -> Result<OwnedFd, Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (apart, holder) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    // SAFETY: there is one thread, so that nobody else has a lock, as of the allocator, which nobody would give back in the child; it
    // runs nothing of its parent's and ends below.
    match unsafe { libc::fork() } {
        ..0 => Err(Errno::AGAIN),
        0 => {
            drop(apart);
            keep_only(&holder);
            work(&holder);
            // SAFETY: it ends, and runs no one's handlers.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(apart),
    }
}

fn keep_only(holder: &OwnedFd) {
    for other in (0..DESCRIPTORS).filter(|other| *other != holder.as_raw_fd()) {
        // SAFETY: its end of a pipe would keep the other from seeing that the holder has ended; nothing here uses any of them.
        unsafe { libc::close(other) };
    }
    let _ = setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: Some(0) });
    // The one to lock memory goes beyond that limit.
    let none = CapabilitySet::empty();
    let _ = set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
}
