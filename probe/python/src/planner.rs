//! The planner of draws, for the loader. Which samples are kept is decided elsewhere: what a policy has to hear is
//! handed back.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use stallscope_cache::{DrawKind, Selection};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ids, their weights, and the places of their next uses.
type Taken = (Vec<u32>, Vec<f32>, Vec<u64>);

/// Draws of a data set's samples, planned ahead. A place is a number of draws since the first.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct Planner {
    planner: Mutex<stallscope_cache::Planner>,
    samples: u32,
    /// By sample, whether it is of low importance among the draws that were labelled last; empty before any were.
    low: Mutex<Vec<bool>>,
}

impl Planner {
    // A thread that holds it never waits for the interpreter.
    fn lock(&self) -> MutexGuard<'_, stallscope_cache::Planner> {
        self.planner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn low(&self) -> MutexGuard<'_, Vec<bool>> {
        self.low.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Planner {
    /// `classes`: of each sample, from 0 on without gaps. `state`: what `save` gave. ValueError where it is of others.
    #[new]
    #[pyo3(signature = (kind, samples, seed, *, uses = 1, window_share = 0.0, pinned_share = 0.0, classes = None, state = None))]
    #[allow(clippy::too_many_arguments, reason = "named by the caller")]
    fn new(
        py: Python<'_>,
        kind: &str,
        samples: u32,
        seed: u64,
        uses: u32,
        window_share: f64,
        pinned_share: f64,
        classes: Option<Vec<u32>>,
        state: Option<&[u8]>,
    ) -> PyResult<Planner> {
        let kind = match kind {
            "plain" => DrawKind::Plain,
            "importance" => DrawKind::Importance,
            "iis" => DrawKind::Iis(Selection::Corrected),
            // Without copies, which would make draws depend on what is kept.
            "shade" => DrawKind::Shade { selection: Selection::Corrected, copies: 1.0 },
            "reuse" => DrawKind::Reuse { uses, window_share, pinned_share },
            other => return Err(PyValueError::new_err(format!("there are no draws called {other}"))),
        };
        if samples == 0 {
            return Err(PyValueError::new_err("there are no draws of no samples"));
        }
        py.detach(|| {
            let planner = match state {
                Some(state) => stallscope_cache::Planner::resumed(kind, samples, seed, state),
                None => Some(stallscope_cache::Planner::new(kind, samples, seed)),
            };
            let mut planner =
                planner.ok_or_else(|| PyValueError::new_err("the state is damaged, or of other draws"))?;
            if let Some(classes) = classes {
                planner.classes(&classes);
            }
            Ok(Planner { planner: Mutex::new(planner), samples, low: Mutex::default() })
        })
    }

    /// Plans as far as draws are made ahead of `place`, which is what has been handed over.
    fn plan(&self, py: Python<'_>, place: u64) -> bool {
        py.detach(|| self.lock().plan(place))
    }

    /// From which place to which draws are planned.
    fn planned(&self) -> (u64, u64) {
        let planner = self.lock();
        (planner.first(), planner.drawn())
    }

    /// Whether `plan` would plan.
    fn has_to_plan(&self, place: u64) -> bool {
        self.lock().has_to_plan(place)
    }

    /// Plans up to `place` at least.
    fn reach(&self, py: Python<'_>, place: u64) {
        py.detach(|| self.lock().reach(place));
    }

    /// Where a chunk ends; None where it was let go, or is not planned.
    fn chunk_end(&self, chunk: u64) -> Option<u64> {
        self.lock().chunk_end(chunk)
    }

    /// Ids, weights and next uses of up to `count` draws from `place` on, as planned.
    fn take(&self, place: u64, count: usize) -> Taken {
        let taken = self.lock().take(place, count);
        (
            taken.iter().map(|planned| planned.draw.id).collect(),
            taken.iter().map(|planned| planned.draw.weight).collect(),
            taken.iter().map(|planned| planned.next_at).collect(),
        )
    }

    /// Ids of up to `count` draws from `place` on, which stay to be taken.
    fn ids(&self, place: u64, count: usize) -> Vec<u32> {
        self.lock().ids(place, count)
    }

    /// Labels the samples of `count` draws from `place` on, and says how many of them are of low importance.
    fn label(&self, py: Python<'_>, place: u64, count: usize) -> usize {
        py.detach(|| {
            let ids = self.lock().low(place, count);
            let mut low = vec![false; self.samples as usize];
            for id in &ids {
                if let Some(is_low) = low.get_mut(*id as usize) {
                    *is_low = true;
                }
            }
            *self.low() = low;
            ids.len()
        })
    }

    /// Whether samples are of low importance, by the last labels.
    fn are_low(&self, ids: Vec<u32>) -> Vec<bool> {
        let low = self.low();
        ids.into_iter().map(|id| low.get(id as usize) == Some(&true)).collect()
    }

    /// What was taken behind `place` has not been used, and is taken again.
    fn give_back(&self, place: u64) {
        self.lock().give_back(place);
    }

    /// All before `place` has been used.
    fn let_go(&self, place: u64) {
        self.lock().let_go(place);
    }

    /// Id, last use and next use of samples whose last use is before `place` and was taken before the next was planned:
    /// of at most `most`.
    fn late_uses(&self, place: u64, most: usize) -> Vec<(u32, u64, u64)> {
        let late = self.lock().late_uses(place, most);
        late.into_iter().map(|late| (late.id, late.at, late.next_at)).collect()
    }

    /// Batches were trained on, of so many samples each. ValueError where the ids are no samples' or lengths differ.
    fn learn(&self, py: Python<'_>, lengths: Vec<usize>, ids: Vec<u32>, losses: Vec<f32>) -> PyResult<()> {
        if let Some(id) = ids.iter().find(|id| **id >= self.samples) {
            return Err(PyValueError::new_err(format!("there is no sample {id} among {}", self.samples)));
        }
        let whole = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
        if ids.len() != losses.len() || whole != Some(ids.len()) {
            return Err(PyValueError::new_err(format!("{} ids have {} losses", ids.len(), losses.len())));
        }
        py.detach(|| {
            let mut planner = self.lock();
            let mut at = 0;
            for length in lengths {
                let batch = at..at + length;
                at += length;
                planner.learn(0, &ids[batch.clone()], &losses[batch]);
            }
        });
        Ok(())
    }

    /// What a policy is to know of samples' importance: of those of which something is known.
    fn scores(&self, ids: Vec<u32>) -> Vec<(u32, f64)> {
        let planner = self.lock();
        ids.into_iter().filter_map(|id| Some((id, planner.score(id)?))).collect()
    }

    /// All that the draws to come depend on, those included that are planned already.
    fn save<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let state = py.detach(|| self.lock().save());
        PyBytes::new(py, &state)
    }
}
