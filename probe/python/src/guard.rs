//! Any fault of ours turns us off, and the job goes on.

use pyo3::exceptions::PyException;
use pyo3::intern;
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

/// Whether an error is to arrive in the job: it is no `Exception` (an interrupt, an exit), or a signal's handler raised it, which may
/// run in any Python code.
pub(crate) fn is_the_jobs(py: Python<'_>, error: &PyErr) -> bool {
    let by_signal = || {
        let raised = error.clone_ref(py).into_value(py);
        let knobs = py.import(intern!(py, "stallscope._hooks.knobs"))?;
        knobs.call_method1(intern!(py, "raised_by_signal"), (raised,))?.extract::<bool>()
    };
    !error.is_instance_of::<PyException>(py) || by_signal().unwrap_or(false)
}

/// What is not to be had in this `result` is `None`, unless the error is the job's, as Python code of the job's or of a library's may
/// have run.
pub(crate) fn known<T>(py: Python<'_>, result: PyResult<T>) -> PyResult<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_the_jobs(py, &error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Takes an error that our own Python code raised, unless it is the job's.
pub(crate) fn ours(result: PyResult<()>) -> PyResult<()> {
    let Err(error) = result else { return Ok(()) };
    Python::attach(|py| {
        if is_the_jobs(py, &error) {
            return Err(error);
        }
        disable(&format!("The shim met a fault of its own and turned itself off in this process: {error}."));
        Ok(())
    })
}
