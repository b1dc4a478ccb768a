use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Low numbers belong to the job: some programs close or count on them.
const FIRST_FD: RawFd = 700;

/// A descriptor that is checked before use, because the job may have closed it (as daemons do with all of theirs)
/// and the number may be one of its own files by now.
#[derive(Debug)]
pub(crate) struct OwnFd {
    fd: RawFd,
    identity: (u64, u64),
}

impl OwnFd {
    /// Takes `fd` over under a high number where that is allowed. `None` when the kernel cannot name it.
    pub(crate) fn adopt(fd: OwnedFd) -> Option<OwnFd> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_FD).unwrap_or(fd);
        let identity = identity(rustix::fs::fstat(&fd).ok()?);
        Some(OwnFd { fd: fd.into_raw_fd(), identity })
    }

    /// The descriptor, whether or not it is still ours; reading at most harms us.
    pub(crate) fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: the number is not -1, and its users cope with a descriptor that is closed or another's.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// The descriptor if it still is what it was.
    pub(crate) fn checked(&self) -> Option<BorrowedFd<'_>> {
        let stat = rustix::fs::fstat(self.borrow()).ok()?;
        (identity(stat) == self.identity).then(|| self.borrow())
    }
}

fn identity(stat: rustix::fs::Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        if self.checked().is_some() {
            // SAFETY: it is open and ours, by the check above.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
    }
}
