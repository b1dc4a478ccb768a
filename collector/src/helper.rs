//! Processes that this program starts to do something as another user.

/// At the start of such a process, which has one thread: it has no terminal, into which the other user could type, and nothing open
/// but its standard streams, whatever who started it had left open.
pub fn begin_as_helper() {
    // It leads no group yet, so that this cannot fail.
    let _ = rustix::process::setsid();
    // SAFETY: closes descriptors that nothing in this process uses; it has just been started.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}
