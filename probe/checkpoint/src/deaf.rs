//! Threads in a training process that none of its signals goes to.
//!
//! A script may block a signal in its own thread, to be asked for (`sigwait`) or so that nothing is cut in two. The system then gives it to any thread that
//! does not block it. In one of ours it would end the process, or call a handler in the midst of what was to be whole.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Those that a thread raises by what it does itself, and a profiler's: they are its own.
const ITS_OWN: [libc::c_int; 8] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
    libc::SIGPROF,
];

/// While it is there, threads that this one starts hear no signals, for as long as they live.
pub(crate) struct StartsDeaf(libc::sigset_t);

impl StartsDeaf {
    pub(crate) fn new() -> StartsDeaf {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the first call makes `all` a set, of which the next ones take members; the last makes `before` one, and fails only for what is
        // no way to change a mask.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for own in ITS_OWN {
                libc::sigdelset(all.as_mut_ptr(), own);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            StartsDeaf(before.assume_init())
        }
    }
}

impl Drop for StartsDeaf {
    fn drop(&mut self) {
        // SAFETY: it is the set that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, null_mut()) };
    }
}
