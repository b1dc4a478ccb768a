//! Notifies the reader once the ring buffer has filled so far that the kernel side wakes it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::Error;

/// poll(2) finds a ring buffer readable as soon as there is any record. This one is readable from a wake-up on, until
/// [`Filled::seen`]: edge-triggered, an epoll hears of wake-ups alone.
#[derive(Debug)]
pub(crate) struct Filled(OwnedFd);

impl Filled {
    pub(crate) fn of(ring: BorrowedFd<'_>) -> Result<Filled, Error> {
        let failed = || Error::system("waiting for the ring buffer")(io::Error::last_os_error());
        // SAFETY: takes no pointers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(failed());
        }
        // SAFETY: the descriptor is new, and nobody else has it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: both descriptors are open and `event` lives through the call.
        let added = unsafe {
            libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, ring.as_raw_fd(), &raw mut event)
        };
        if added < 0 { Err(failed()) } else { Ok(Filled(epoll)) }
    }

    /// What there was to be heard of was.
    pub(crate) fn seen(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is a place for the one event that may be written, and nothing is waited for.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, 0) };
    }
}

impl AsFd for Filled {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
