//! Per-sample times in a worker's main thread (`_hooks/in_process.py` says why not elsewhere), taken between the loader's fetcher and the data set without either noticing: the fetcher
//! keeps its own attributes, and its `fetch` runs on a shadow of it whose data set is timed.

use crate::guard;
use crate::producer::{Making, Producer};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyString};
use pyo3::{PyTraverseError, PyVisit, intern};
use std::sync::Arc;

/// A data set whose samples are timed.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
struct Samples {
    dataset: Py<PyAny>,
    making: Arc<Making>,
}

#[pymethods]
impl Samples {
    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let sample = self.dataset.bind(py).get_item(index)?;
        guard::observe((), || self.making.sample(1));
        Ok(sample)
    }

    /// A method where the data set has one that counts, else not there at all, as the fetcher expects.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        let value = self.dataset.bind(py).getattr(name)?;
        if name.to_cow()? == "__getitems__" && value.is_truthy()? {
            let batch = Samples { dataset: value.unbind(), making: self.making.clone() };
            return Ok(Bound::new(py, batch)?.into_any());
        }
        Ok(value)
    }

    /// Only ever called on what `__getattr__` gave for `__getitems__`.
    fn __call__<'py>(&self, py: Python<'py>, indices: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let samples = self.dataset.bind(py).call1((indices,))?;
        let count = guard::known(py, indices.len())?.unwrap_or(1);
        guard::observe((), || self.making.sample(count as u32));
        Ok(samples)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.dataset)
    }
}

/// An iterable data set's iterator whose samples are timed.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
struct Stream {
    iterator: Py<PyIterator>,
    making: Arc<Making>,
}

#[pymethods]
impl Stream {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(sample) = self.iterator.bind(py).clone().next().transpose()? else { return Ok(None) };
        guard::observe((), || self.making.sample(1));
        Ok(Some(sample))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.iterator)
    }
}

/// Tells when collation begins.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
struct Collate {
    collate: Py<PyAny>,
    making: Arc<Making>,
}

#[pymethods]
impl Collate {
    fn __call__<'py>(&self, py: Python<'py>, samples: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guard::observe((), || self.making.collate());
        self.collate.bind(py).call1((samples,))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.collate)
    }
}

/// Takes the place of a fetcher's `fetch`.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct Fetch {
    /// Weak: the fetcher holds us.
    fetcher: Py<PyAny>,
    shadow: Py<PyAny>,
    making: Arc<Making>,
    iterable: bool,
}

#[pymethods]
impl Fetch {
    /// `fetcher`: a weak reference; `shadow`: a second object of its class.
    #[new]
    fn new(fetcher: Py<PyAny>, shadow: Py<PyAny>, producer: &Producer, iterable: bool) -> Fetch {
        Fetch { fetcher, shadow, making: producer.making.clone(), iterable }
    }

    fn __call__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let fetcher = self.fetcher.bind(py).call0()?;
        let shadow = self.shadow.bind(py);
        let ready = guard::observe(Ok(None), || guard::known(py, self.prepare(&fetcher, shadow)))?;
        if ready.is_none() {
            guard::disable(
                "The loader's fetcher has another shape than expected; no times of single samples.",
            );
            return fetcher.get_type().call_method1(intern!(py, "fetch"), (&fetcher, index));
        }
        let batch = shadow.call_method1(intern!(py, "fetch"), (index,));
        if self.iterable {
            fetcher.setattr(intern!(py, "ended"), shadow.getattr(intern!(py, "ended"))?)?;
        }
        batch
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.fetcher)?;
        visit.call(&self.shadow)
    }
}

impl Fetch {
    /// Gives the shadow what the fetcher has now, timed.
    fn prepare(&self, fetcher: &Bound<'_, PyAny>, shadow: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = fetcher.py();
        let making = || self.making.clone();
        if self.iterable {
            let name = intern!(py, "dataset_iter");
            let iterator = fetcher.getattr(name)?;
            let known = shadow.getattr(name)?;
            if !known.cast::<Stream>().is_ok_and(|stream| stream.get().iterator.is(&iterator)) {
                let iterator = iterator.cast_into::<PyIterator>()?.unbind();
                shadow.setattr(name, Bound::new(py, Stream { iterator, making: making() })?)?;
            }
            shadow.setattr(intern!(py, "ended"), fetcher.getattr(intern!(py, "ended"))?)?;
        } else {
            let name = intern!(py, "dataset");
            let dataset = fetcher.getattr(name)?;
            let known = shadow.getattr(name)?;
            if !known.cast::<Samples>().is_ok_and(|samples| samples.get().dataset.is(&dataset)) {
                shadow.setattr(
                    name,
                    Bound::new(py, Samples { dataset: dataset.unbind(), making: making() })?,
                )?;
            }
        }
        let name = intern!(py, "collate_fn");
        let collate = fetcher.getattr(name)?;
        let known = shadow.getattr(name)?;
        if !known.cast::<Collate>().is_ok_and(|known| known.get().collate.is(&collate)) {
            shadow.setattr(name, Bound::new(py, Collate { collate: collate.unbind(), making: making() })?)?;
        }
        Ok(())
    }
}
