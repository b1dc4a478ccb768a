//! Signals while a thread of Python waits for a store, or looks through checkpoints: Ctrl-C ends that, as it ends a read of a file.

use pyo3::prelude::*;
use std::cell::{Cell, RefCell};

thread_local! {
    /// Whether this thread is one of Python's and in such a wait. Others have no handlers to run, and outlive the interpreter.
    static WAITS: Cell<bool> = const { Cell::new(false) };
    /// What a handler raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// From now on a wait looks for signals.
pub(crate) fn watch() {
    stallscope_remote::interrupt_by(is_interrupted);
}

/// Does `work` without the interpreter's lock, and looks for signals in it; an error is what a handler raised.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let done = py.detach(|| {
        WAITS.set(true);
        let done = work();
        WAITS.set(false);
        done
    });
    match RAISED.take() {
        Some(error) => Err(error),
        None => Ok(done),
    }
}

/// Within `detached`, whether it is to end.
pub(crate) fn is_interrupted() -> bool {
    if !WAITS.get() {
        return false;
    }
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    Python::attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            RAISED.set(Some(error));
            true
        }
    })
}
