//! The miss-ratio curve of a cache that several ranks share: this one's part of the uses, for the pool, which has the curve.

use crate::ghost::tracked;
use crate::pool::Space;
use pyo3::prelude::*;
use pyo3::types::PyList;
use stallscope_cache::pool::{Feed, Member};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of one loader. Nothing here waits for the pool but `look`.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct Joint {
    space: Py<Space>,
    feed: Mutex<Feed>,
}

/// Whether jobs are mixed, whether this rank is to show it, ranks, bytes of the data set; and by size bytes, uses, misses.
type Curve = (bool, bool, u32, u64, Vec<(u64, u64, u64)>);

impl Joint {
    // A thread that holds it has the interpreter's lock and runs no Python code, so that a fork never finds it held.
    fn lock(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Joint {
    /// `loader`: the same in all ranks, another one for each loader. `job`: tells jobs apart; 0 where nothing does.
    #[new]
    fn new(
        space: Py<Space>,
        loader: u64,
        samples: u64,
        epoch_uses: u64,
        job: u64,
        rank: u32,
        ranks: u32,
    ) -> Joint {
        let feed = Mutex::new(Feed::new(Member { loader, samples, epoch_uses, job, rank, ranks }));
        Joint { space, feed }
    }

    /// See [`crate::ghost::Ghost`]. `ids`: those of the space, where indices are others.
    #[pyo3(signature = (indices, ids=None))]
    fn handed(&self, indices: &Bound<'_, PyList>, ids: Option<&Bound<'_, PyList>>) {
        let which = self.lock().tracked();
        let uses = tracked(indices, ids.unwrap_or(indices), which);
        self.lock().used(&self.space.get().client, indices.len() as u64, &uses);
    }

    fn planned(&self, planned: Vec<(u32, u64)>) {
        self.lock().planned(planned);
    }

    fn scored(&self, scored: Vec<(u32, f64)>) {
        self.lock().scored(&self.space.get().client, scored);
    }

    fn epoch(&self) {
        self.lock().epoch(&self.space.get().client);
    }

    /// Looks for a pool again where it was lost: a second at most, and at ever longer intervals.
    fn look(&self, py: Python<'_>) {
        let client = &self.space.get().client;
        py.detach(|| client.is_alive());
    }

    /// None before the pool says anything.
    fn curve(&self) -> Option<Curve> {
        let mut feed = self.lock();
        let rank = feed.rank();
        let curve = feed.curve(&self.space.get().client)?;
        let points = curve.points.iter().map(|point| (point.capacity_bytes, point.uses, point.misses));
        Some((curve.is_mixed, curve.teller == rank, curve.ranks, curve.dataset_bytes, points.collect()))
    }
}
