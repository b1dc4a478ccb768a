use rustix::fs::Stat;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Low numbers belong to the job: some programs close or count on them.
const FIRST_FD: RawFd = 700;

/// A descriptor in a process that is not ours, and may close what it likes: it is looked at before each use, as the
/// number may be one of the job's own files by now.
#[derive(Debug)]
pub(crate) struct Held {
    fd: RawFd,
    identity: (u64, u64),
    closed: AtomicBool,
}

impl Held {
    pub(crate) fn new(fd: OwnedFd) -> Option<Held> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_FD).unwrap_or(fd);
        let identity = identity(&rustix::fs::fstat(&fd).ok()?);
        Some(Held { fd: fd.into_raw_fd(), identity, closed: AtomicBool::new(false) })
    }

    /// The descriptor, if it still is what it was.
    pub(crate) fn checked(&self) -> Option<BorrowedFd<'_>> {
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the number is not -1; whether it is open, and ours, is asked before anything else is done with it.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        (identity(&rustix::fs::fstat(fd).ok()?) == self.identity).then_some(fd)
    }

    pub(crate) fn close(&self) {
        if self.checked().is_some() && !self.closed.swap(true, Ordering::Relaxed) {
            // SAFETY: it is open and ours, by the check, and nobody uses it after this.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.close();
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
