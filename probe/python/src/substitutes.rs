//! Which draws of a loader are given another sample, for the training process.

use crate::pool::Space;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Its search looks into the pool's memory, which waits for nobody: so it keeps the interpreter's lock.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct Substitutes {
    substitutes: Mutex<stallscope_cache::Substitutes>,
}

impl Substitutes {
    // A thread that holds it runs no Python code, so that a fork never finds it held.
    fn lock(&self) -> MutexGuard<'_, stallscope_cache::Substitutes> {
        self.substitutes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Substitutes {
    /// `classes`: of each sample, from 0 on without gaps. `share`: of an epoch's draws, how many may be given another.
    #[new]
    fn new(py: Python<'_>, classes: Vec<u32>, share: f64, seed: u64, rank: u32, ranks: u32) -> Substitutes {
        let made = py.detach(|| stallscope_cache::Substitutes::new(classes, share, seed, rank, ranks));
        Substitutes { substitutes: Mutex::new(made) }
    }

    /// An epoch begins with the draw at this place.
    fn begin(&self, place: u64) {
        self.lock().begin(place);
    }

    /// An epoch goes on of whose beginning nothing is known.
    fn begin_blind(&self) {
        self.lock().begin_blind();
    }

    /// Of a batch of all ranks, `drawn` from place `at` on, of which `count` from the `first` on are this rank's: which of
    /// them are given another sample, by their place in `drawn`, and which sample that is. What is before `handed` was handed
    /// over. `spaces`: where samples may be kept; without one nothing is given. `numbers`: of each sample in there, 8 bytes
    /// each, where they are not its id.
    #[pyo3(signature = (spaces, numbers, at, drawn, first, count, handed))]
    #[allow(clippy::too_many_arguments, reason = "one call for each batch")]
    fn batch(
        &self,
        py: Python<'_>,
        spaces: Vec<Bound<'_, Space>>,
        numbers: Option<&Bound<'_, PyBytes>>,
        at: u64,
        drawn: Vec<u32>,
        first: usize,
        count: usize,
        handed: u64,
    ) -> Vec<(usize, u32)> {
        let numbers = numbers.map(|numbers| numbers.as_bytes());
        let number = |id: u32| match numbers {
            None => Some(u64::from(id)),
            Some(numbers) => {
                let bytes = numbers.get(id as usize * 8..)?.first_chunk()?;
                Some(u64::from_ne_bytes(*bytes))
            }
        };
        let mut spaces: Vec<&Space> = spaces.iter().map(Bound::get).collect();
        // What a pool that was killed kept can be seen still, and be had by nobody who connects later.
        py.detach(|| spaces.retain(|space| space.client.is_alive()));
        let holds = |space: &Space, id| number(id).is_some_and(|id| space.client.holds(id));
        let is_there = |id: u32| spaces.is_empty() || spaces.iter().any(|space| holds(space, id));
        let last = first.saturating_add(count).min(drawn.len());
        self.lock().batch(at, &drawn, first.min(last)..last, handed, &is_there)
    }

    /// All before `place` has been handed over.
    fn handed_over(&self, place: u64) {
        self.lock().handed_over(place);
    }

    /// What the epoch has used and given until what was handed over last.
    fn save<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.lock().save())
    }

    /// Goes on where `save` was called. ValueError where that was of others.
    fn load(&self, state: &[u8]) -> PyResult<()> {
        let loaded = self.lock().load(state);
        loaded
            .ok_or_else(|| PyValueError::new_err("the state of substitution is damaged, or of other samples"))
    }
}
