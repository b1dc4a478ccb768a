//! A worker's two queues, seen from inside its loop: an index comes, a batch goes.

use crate::guard;
use crate::producer::{Making, Producer};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use std::sync::Arc;

/// The batch number in a message of either queue; `None` for the messages that are no batch.
fn batch_of(message: &Bound<'_, PyAny>) -> Option<u64> {
    let pair = message.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2)?;
    pair.get_item(0).ok()?.cast::<PyInt>().ok()?.extract().ok()
}

/// Stands before the queue a worker gets its indices from.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct IndexQueue {
    queue: Py<PyAny>,
    making: Arc<Making>,
}

#[pymethods]
impl IndexQueue {
    #[new]
    fn new(queue: Py<PyAny>, producer: &Producer) -> IndexQueue {
        IndexQueue { queue, making: producer.making.clone() }
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = self.queue.bind(py).call_method("get", args, kwargs)?;
        guard::observe((), || {
            if let Some(batch) = batch_of(&message) {
                self.making.begin(batch);
            }
        });
        Ok(message)
    }

    fn __getattr__<'py>(&self, py: Python<'py>, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.queue.bind(py).getattr(name.cast::<pyo3::types::PyString>()?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.queue)
    }
}

/// Stands before the queue a worker puts its batches into.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct DataQueue {
    queue: Py<PyAny>,
    making: Arc<Making>,
}

#[pymethods]
impl DataQueue {
    #[new]
    fn new(queue: Py<PyAny>, producer: &Producer) -> DataQueue {
        DataQueue { queue, making: producer.making.clone() }
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guard::observe((), || {
            if args.get_item(0).ok().as_ref().and_then(batch_of).is_some() {
                self.making.ready();
            }
        });
        self.queue.bind(py).call_method("put", args, kwargs)
    }

    fn __getattr__<'py>(&self, py: Python<'py>, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.queue.bind(py).getattr(name.cast::<pyo3::types::PyString>()?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.queue)
    }
}
