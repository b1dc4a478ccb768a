//! A forked child must not write into its parent's lane or speak on its socket.

use pyo3::prelude::*;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static WATCH: Once = Once::new();

/// Changes in a process whenever it turns out to be a forked child.
#[inline]
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Whether this process was forked from one that had begun to be measured.
#[pyfunction]
pub(crate) fn forked() -> bool {
    generation() > 0
}

/// From now on a forked child forgets lane and socket before it runs anything else.
pub(crate) fn watch() {
    WATCH.call_once(|| {
        // SAFETY: the handler is a plain function that lives as long as the process (Python never unloads
        // extension modules).
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::lane::forget();
    crate::knobs::forget();
    crate::connection::forget();
    crate::iteration::forget();
    crate::steps::forget();
}
