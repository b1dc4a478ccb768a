//! The device's side of a wait; Python does the work, because it holds the events.

use crate::guard::is_the_jobs;
use pyo3::intern;
use pyo3::prelude::*;
use std::sync::Mutex;

static WATCHER: Mutex<Option<Py<PyAny>>> = Mutex::new(None);

/// `watcher` gets `enter()` at the entry of each wait and `leave(time_ns)` at its end; `None`: nobody.
#[pyfunction]
pub(crate) fn watch_device(watcher: Option<Py<PyAny>>) {
    if let Ok(mut guard) = WATCHER.try_lock() {
        *guard = watcher;
    }
}

fn watcher(py: Python<'_>) -> Option<Py<PyAny>> {
    WATCHER.try_lock().ok()?.as_ref().map(|watcher| watcher.clone_ref(py))
}

/// Without a device that works there is nobody to tell; what is no `Exception` is the job's.
fn settle(py: Python<'_>, result: PyResult<Py<PyAny>>) -> PyResult<()> {
    let Err(error) = result else { return Ok(()) };
    if is_the_jobs(py, &error) {
        return Err(error);
    }
    watch_device(None);
    crate::connection::unavailable(&format!("The device cannot be watched: {}.", error.value(py)));
    Ok(())
}

/// A wait begins.
pub(crate) fn enter(py: Python<'_>) -> PyResult<()> {
    match watcher(py) {
        Some(watcher) => settle(py, watcher.call_method0(py, intern!(py, "enter"))),
        None => Ok(()),
    }
}

/// The wait that began last ended at `time_ns`.
pub(crate) fn leave(py: Python<'_>, time_ns: u64) -> PyResult<()> {
    match watcher(py) {
        Some(watcher) => settle(py, watcher.call_method1(py, intern!(py, "leave"), (time_ns,))),
        None => Ok(()),
    }
}
