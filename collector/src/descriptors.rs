//! How many descriptors there may be for those who call, and those that callers pass along with their bytes (SCM_RIGHTS), which
//! nobody here wants.
//!
//! The kernel closes the latter as the bytes are read or the connection is closed, and that may take long: the last close of a TCP
//! socket that lingers (SO_LINGER) lasts as long as its owner has set, while the one thread that serves everybody waits. From
//! Linux 6.16 on, the kernel can refuse them to the sender. Before that, a signal ends such a wait.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;

/// Those that are left to root's callers, to kernel programs and their maps, and to clients of the metrics.
const OTHERS: usize = 128;

/// From asm-generic/socket.h, as on x86-64 and ARM.
const SO_PASSRIGHTS: libc::c_int = 83;

/// How long such a wait lasts at most.
const PATIENCE_US: libc::suseconds_t = 10_000;

/// Allows this process, and what it starts from now on, as many as it may have. Programs are often started with 1024, and more for
/// the asking. Without that they have to do.
pub(crate) fn allow_all() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// How many connections there may be, with as many descriptors as this process may have.
pub(crate) fn places() -> usize {
    allow_all();
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(OTHERS)
}

/// Has the kernel refuse them where it can, on connections that are made to `listener` from now on.
pub(crate) fn refuse(listener: &UnixListener) {
    let off: libc::c_int = 0;
    let length = size_of_val(&off) as libc::socklen_t;
    // SAFETY: the value is this function's own, and of the length that is given.
    unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            length,
        )
    };
}

/// Ends waits of the kernel's, once it is ready. For the main thread of a process that has no other use for SIGALRM.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alarm {
    is_ready: bool,
}

impl Alarm {
    pub(crate) fn ready() -> Alarm {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: a handler that does nothing may interrupt anything.
        unsafe { libc::signal(libc::SIGALRM, handler as libc::sighandler_t) };
        Alarm { is_ready: true }
    }

    /// Does `work`, in which something of a caller's may be closed.
    pub(crate) fn during<T>(self, work: impl FnOnce() -> T) -> T {
        self.ring_every(PATIENCE_US);
        let done = work();
        self.ring_every(0);
        done
    }

    /// 0: not any more.
    fn ring_every(self, period_us: libc::suseconds_t) {
        if self.is_ready {
            let period = libc::timeval { tv_sec: 0, tv_usec: period_us };
            let timer = libc::itimerval { it_interval: period, it_value: period };
            // SAFETY: the timer is this function's own, and the one before is not asked for.
            unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
        }
    }
}
