//! The miss-ratio curve of a loader's cache, for the training process.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;
use stallscope_cache::{Tracked, Use};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Uses of samples, as they are handed over, in caches of several sizes that keep nothing.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct Ghost {
    ghost: Mutex<stallscope_cache::Ghost>,
}

impl Ghost {
    // A thread that holds it runs no Python code, so that a fork never finds it held.
    fn lock(&self) -> MutexGuard<'_, stallscope_cache::Ghost> {
        self.ghost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Ghost {
    #[new]
    fn new(policy: &str, samples: u64) -> PyResult<Ghost> {
        Ok(Ghost { ghost: Mutex::new(stallscope_cache::Ghost::new(crate::pool::policy(policy)?, samples)) })
    }

    /// How large the cache is, and a sample on average.
    fn size(&self, capacity_bytes: u64, sample_bytes: f64) {
        self.lock().size(capacity_bytes, sample_bytes);
    }

    /// A batch was handed over, of these indices; with places among the draws, where they have them. What is no sample's
    /// number is left out.
    fn handed(&self, indices: &Bound<'_, PyList>) {
        let places = tracked(indices, indices, self.lock().tracked());
        let mut ghost = self.lock();
        ghost.handed(indices.len() as u64);
        for (id, at, next_at) in places {
            ghost.used(id, at, next_at);
        }
        ghost.settle();
    }

    /// Next uses that became known: index and place. Heard once those that they follow were handed over.
    fn planned(&self, planned: Vec<(u32, u64)>) {
        let mut ghost = self.lock();
        planned.into_iter().for_each(|(id, next_at)| ghost.planned(id, next_at));
    }

    /// How important samples are from now on: index and score.
    fn scored(&self, scored: Vec<(u32, f64)>) {
        let mut ghost = self.lock();
        scored.into_iter().for_each(|(id, score)| ghost.scored(id, score));
    }

    /// An epoch begins.
    fn epoch(&self) {
        self.lock().epoch();
    }

    /// By size, the smallest first: bytes, uses, and how many of them were missed.
    fn curve(&self) -> Vec<(u64, u64, u64)> {
        let points = self.lock().curve();
        points.into_iter().map(|point| (point.capacity_bytes, point.uses, point.misses)).collect()
    }

    /// All samples together, from their size on average.
    #[getter]
    fn dataset_bytes(&self) -> u64 {
        self.lock().dataset_bytes()
    }
}

/// Those of some indices, each with its id, that stand for all: number, place among the draws, and the next one's.
pub(crate) fn tracked(
    indices: &Bound<'_, PyList>,
    ids: &Bound<'_, PyList>,
    which: Tracked,
) -> Vec<(u32, u64, u64)> {
    let of = |(index, id): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let id = number(&id).filter(|id| which.has(*id))?;
        Some((id, place(&index, "at"), place(&index, "next_at")))
    };
    indices.iter().zip(ids.iter()).filter_map(of).collect()
}

/// A sample's number, of a whole number or what is derived from one.
fn number(index: &Bound<'_, PyAny>) -> Option<u32> {
    // SAFETY: a live object, with the interpreter's lock held.
    if unsafe { ffi::PyLong_Check(index.as_ptr()) } == 0 {
        return None;
    }
    let mut overflow = 0;
    // SAFETY: it is a whole number, so that nobody's `__index__` is called; `overflow` is written to.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(index.as_ptr(), &mut overflow) };
    u32::try_from(value).ok().filter(|_| overflow == 0)
}

fn place(index: &Bound<'_, PyAny>, name: &str) -> u64 {
    index.getattr(name).and_then(|place| place.extract()).unwrap_or(Use::UNKNOWN)
}
