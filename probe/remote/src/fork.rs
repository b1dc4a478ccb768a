//! Which process this is, counted in forks.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static WATCH: Once = Once::new();

/// Another number in a process than in the one it was forked from. Not the process's number: that of one that has ended may be another's.
pub(crate) fn generation() -> u64 {
    WATCH.call_once(|| {
        // SAFETY: the handler is a plain function that lives as long as the process (Python never unloads extension modules).
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
