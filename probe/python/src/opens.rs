//! Opens and reads of files from Python, timed on request: for `fetch` where no kernel evidence is to be had.
//!
//! Covers `open(path, "rb")` and what is read from it in Python; not mmap, `os.read` or reads in native libraries.

use crate::clock;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString, PyTuple};
use std::cell::Cell;

thread_local! {
    static READ_NS: Cell<u64> = const { Cell::new(0) };
}

/// ns that the calling thread has spent in timed opens and reads so far.
#[inline]
pub(crate) fn read_ns() -> u64 {
    READ_NS.get()
}

fn add_since(began_ns: u64) {
    READ_NS.set(READ_NS.get() + clock::now_ns().saturating_sub(began_ns));
}

/// Counts the time since `began_ns` as reading.
#[pyfunction]
pub(crate) fn add_read(began_ns: u64) {
    add_since(began_ns);
}

/// Takes the place of `open`. Not a Python function, because as a class attribute that would turn into a method.
/// Says that it comes from `io`, as `open` does, and is pickled as `io.open`: what unpickles it has one.
#[pyclass(frozen, module = "io")]
#[derive(Debug)]
pub(crate) struct Open {
    original: Py<PyAny>,
    /// `timed(path)`: what `open(path, "rb")` gives, with its reads timed.
    timed: Py<PyAny>,
}

#[pymethods]
impl Open {
    #[new]
    fn new(original: Py<PyAny>, timed: Py<PyAny>) -> Open {
        Open { original, timed }
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if kwargs.is_some()
            || args.len() != 2
            || !is_read_binary(&args.get_item(1)?)
            || is_fd(&args.get_item(0)?)
        {
            return self.original.bind(py).call(args, kwargs);
        }
        let began_ns = clock::now_ns();
        let file = self.timed.bind(py).call1((args.get_item(0)?,));
        add_since(began_ns);
        file
    }

    fn __reduce__(&self) -> &'static str {
        "open"
    }

    fn __getattr__<'py>(&self, py: Python<'py>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        self.original.bind(py).getattr(name)
    }
}

fn is_read_binary(mode: &Bound<'_, PyAny>) -> bool {
    mode.cast::<PyString>().is_ok_and(|mode| mode.to_cow().is_ok_and(|mode| mode == "rb"))
}

fn is_fd(file: &Bound<'_, PyAny>) -> bool {
    file.is_instance_of::<PyInt>()
}
