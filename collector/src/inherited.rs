//! Descriptors that were there when this process began, and that are the job's.
//!
//! A job may close one, so that the process at the other end of a pipe sees its end. It does so only when nobody else has it open.

use rustix::fd::{BorrowedFd, RawFd};
use rustix::io::{FdFlags, fcntl_getfd};
use std::sync::OnceLock;

/// Those below are this process's, too.
const FIRST_FD: RawFd = 3;

static INHERITED: OnceLock<Vec<RawFd>> = OnceLock::new();

/// Notes which they are. To be called before anything is opened.
pub fn note_inherited_descriptors() {
    let names = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let inherited = |fd: &RawFd| {
        // SAFETY: asking for its flags does nothing to whatever it is.
        let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*fd) });
        // What this process has opened itself, as the folder that is being read, ends with it.
        *fd >= FIRST_FD && flags.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
    };
    let _ = INHERITED.set(numbers.filter(inherited).collect());
}

/// Closes them, once the job has them and this process has opened all that its user named.
pub(crate) fn let_go() {
    for fd in INHERITED.get().into_iter().flatten() {
        // SAFETY: nothing in this process has them, as it opened none of them.
        unsafe { rustix::io::close(*fd) };
    }
}
