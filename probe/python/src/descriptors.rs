//! Whether descriptors of two processes lead to one open file: with one place in it, and its locks.

use pyo3::prelude::*;

/// `KCMP_FILE` of linux/kcmp.h, which libc lacks.
const FILE: libc::c_int = 0;

/// Whether descriptor `own` of this process and `other` of process `pid` do. `None` where the kernel does not say, as in a container that
/// forbids to ask.
///
/// # Errors
/// An `OSError` where there is no such descriptor or process.
#[pyfunction]
pub(crate) fn is_one_open_file(own: i32, pid: i32, other: i32) -> PyResult<Option<bool>> {
    let this = std::process::id();
    // SAFETY: it takes five numbers, and reads and writes no memory of ours.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, this, pid, FILE, own, other) };
    if order >= 0 {
        return Ok(Some(order == 0));
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EBADF) => Ok(Some(false)),
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES) => Ok(None),
        _ => Err(error.into()),
    }
}
