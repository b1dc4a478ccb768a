//! Any fault of ours turns us off, and the job goes on.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

static OFF: AtomicBool = AtomicBool::new(false);

/// Whether the shim still measures.
#[inline]
pub(crate) fn enabled() -> bool {
    !OFF.load(Ordering::Relaxed)
}

/// Turns the shim off in this process and tells the collector why.
pub(crate) fn disable(what: &str) {
    if !OFF.swap(true, Ordering::Relaxed) {
        crate::connection::unavailable(what);
    }
}

/// Runs `work` unless the shim is off; `otherwise` when it is, or when `work` panics.
#[inline]
pub(crate) fn observe<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    if !enabled() {
        return otherwise;
    }
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(_) => {
            disable(
                "The shim met a fault of its own and turned itself off in this process; please report it.",
            );
            otherwise
        }
    }
}

/// What is not to be had in this `result` is `None`; what is no `Exception` (an interrupt, an exit) is the job's, as
/// Python code of the job's or of a library's may have run.
pub(crate) fn known<T>(py: Python<'_>, result: PyResult<T>) -> PyResult<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Takes an error that our own Python code raised; what is no `Exception` (an interrupt, an exit) is the job's.
pub(crate) fn ours(result: PyResult<()>) -> PyResult<()> {
    let Err(error) = result else { return Ok(()) };
    Python::attach(|py| {
        if error.is_instance_of::<PyException>(py) {
            disable(&format!(
                "The shim met a fault of its own and turned itself off in this process: {error}."
            ));
            Ok(())
        } else {
            Err(error)
        }
    })
}
