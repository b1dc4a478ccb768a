//! Checkpoints for Python: a thin layer over `stallscope_checkpoint`. The interpreter's lock is released wherever bytes
//! are copied or anything is waited for; a wait ends by itself after the time it is given, so that Python can look for
//! signals between two.

use crate::checkpoint_timing::CheckpointTiming;
use crate::interrupts;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use stallscope_checkpoint::{
    Best, Check, Checkpoint, Dtype, Error, History, Mode, Options, Outcome, Plan, Region, Retain, Saver,
    Snapshot, Source, Store, Target, TensorSpec, Ticket, Window, mark_verified,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Name, type by its safetensors name, shape, and where it lies; no address for what the caller copies itself.
type Tensor = (String, String, Vec<u64>, Option<usize>);

/// The name of a checkpoint that was passed over, and why.
type Passed = (String, String);

/// Of a region: where it begins in the tensor, its sizes, the target's sizes, and where it begins there.
type Bounds = (Vec<u64>, Vec<u64>, Vec<u64>, Vec<u64>);

/// Name, bytes to write to and how many, and which region of the tensor goes there; None for all of it.
type Place = (String, usize, usize, Option<Bounds>);

fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let sentence = error.to_string();
    let class =
        py.import("stallscope.checkpoint.errors").and_then(|module| module.getattr("CheckpointError"));
    match class.and_then(|class| class.call1((&sentence,))) {
        Ok(value) => PyErr::from_value(value),
        Err(_) => PyRuntimeError::new_err(sentence),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spec(name: String, dtype: &str, shape: Vec<u64>) -> Result<TensorSpec, Error> {
    let dtype = Dtype::of_name(dtype)
        .ok_or_else(|| Error::Refused(format!("tensor {name:?} has the unknown type {dtype:?}")))?;
    Ok(TensorSpec { name, dtype, shape })
}

/// Saves checkpoints of one rank.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct CheckpointSaver {
    /// None once it is closed.
    saver: Mutex<Option<Saver>>,
    plan: Mutex<Option<Plan>>,
}

/// How a save ended.
#[pyclass(frozen, get_all, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct CheckpointOutcome {
    name: String,
    step: u64,
    committed: bool,
    /// A sentence.
    error: Option<String>,
    image_bytes: u64,
    written_bytes: u64,
    reused_bytes: u64,
    write_ns: u64,
    commit_ns: u64,
}

impl From<Outcome> for CheckpointOutcome {
    fn from(outcome: Outcome) -> CheckpointOutcome {
        let (saved, error) = match outcome.result {
            Ok(saved) => (saved, None),
            Err(error) => (Default::default(), Some(error.to_string())),
        };
        CheckpointOutcome {
            name: outcome.ticket.name,
            step: outcome.ticket.step,
            committed: saved.committed,
            error,
            image_bytes: saved.image_bytes,
            written_bytes: saved.written_bytes,
            reused_bytes: saved.reused_bytes,
            write_ns: saved.write_ns,
            commit_ns: saved.commit_ns,
        }
    }
}

impl CheckpointSaver {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Saver) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| match lock(&self.saver).as_ref() {
            Some(saver) => work(saver),
            None => Err(Error::Refused("this Checkpointer is closed; make a new one to save more".into())),
        });
        result.map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl CheckpointSaver {
    /// `keep_every`: (steps, seconds), of which one is given at most. `best`: (metric, whether less is better, how many stay).
    #[new]
    #[pyo3(signature = (dir, rank, world, keep, patience_s, keep_every=(None, None), best=None))]
    #[allow(clippy::too_many_arguments, reason = "Python has no other way to give options")]
    fn new(
        py: Python<'_>,
        dir: PathBuf,
        rank: u32,
        world: u32,
        keep: usize,
        patience_s: f64,
        keep_every: (Option<u64>, Option<u64>),
        best: Option<(String, bool, usize)>,
    ) -> PyResult<CheckpointSaver> {
        let patience = Duration::try_from_secs_f64(patience_s).unwrap_or(Duration::MAX);
        let best = best.map(|(metric, less, keep)| {
            let mode = if less { Mode::Min } else { Mode::Max };
            Best { metric, mode, keep }
        });
        let retain = Retain { every_steps: keep_every.0, every_s: keep_every.1, best };
        let options = Options { rank, world, keep: Some(keep), retain, patience, ..Options::default() };
        let saver = py.detach(|| Saver::open(&dir, options)).map_err(|error| raised(py, &error))?;
        Ok(CheckpointSaver { saver: Mutex::new(Some(saver)), plan: Mutex::default() })
    }

    /// What is saved from now on belongs to that run: the one of the checkpoint that training goes on from.
    fn continue_run(&self, run: Option<String>) {
        if let Some(saver) = lock(&self.saver).as_ref() {
            saver.continue_run(run);
        }
    }

    /// The checkpoints of other runs that were in the folder, newest first. Rank 0 alone knows.
    fn of_other_runs(&self) -> Vec<String> {
        lock(&self.saver).as_ref().map(Saver::of_other_runs).unwrap_or_default()
    }

    /// Copies tensors; those without an address are the caller's to write to `CheckpointSnapshot.place`. `still` are the
    /// places of those that training does not change.
    fn snapshot(
        &self,
        py: Python<'_>,
        tensors: Vec<Tensor>,
        still: Vec<usize>,
    ) -> PyResult<CheckpointSnapshot> {
        let snapshot = self.with(py, |saver| {
            let (mut specs, mut sources) =
                (Vec::with_capacity(tensors.len()), Vec::with_capacity(tensors.len()));
            for (name, dtype, shape, address) in tensors {
                specs.push(spec(name, &dtype, shape)?);
                sources.push(address.map_or(Source::ByCaller, |address| Source::Now(address as *const u8)));
            }
            let mut plan = lock(&self.plan);
            if !plan.as_ref().is_some_and(|plan| plan.is_of(&specs)) {
                *plan = Some(Plan::of(specs, &still)?);
            }
            let Some(plan) = plan.as_ref() else {
                return Err(Error::Refused("there is nothing to save".into()));
            };
            // SAFETY: checkpointer.py gives addresses of dense CPU tensors that it holds until this returns, with their
            // own types and shapes; nothing writes to them meanwhile, as all of them are copied before this returns to
            // the thread that trains.
            unsafe { saver.snapshot(plan, &sources) }
        })?;
        Ok(CheckpointSnapshot { snapshot: Mutex::new(Some(snapshot)) })
    }

    /// Populates memory for such tensors in the background, so that the first save costs what later ones do.
    fn prepare(&self, py: Python<'_>, tensors: Vec<Tensor>, still: Vec<usize>) -> PyResult<()> {
        self.with(py, |saver| {
            let specs = tensors.into_iter().map(|(name, dtype, shape, _)| spec(name, &dtype, shape));
            let prepared = Plan::of(specs.collect::<Result<_, _>>()?, &still)?;
            saver.prepare(&prepared);
            *lock(&self.plan) = Some(prepared);
            Ok(())
        })
    }

    /// Rank 0's decision on a save of this step, as text for the others.
    fn ticket(&self, py: Python<'_>, step: u64) -> PyResult<String> {
        self.with(py, |saver| Ok(saver.ticket(step).to_string()))
    }

    /// Writes a snapshot in the background. `metrics`: what was measured of this state, by name.
    #[pyo3(signature = (snapshot, ticket, user, metrics=BTreeMap::new()))]
    fn persist(
        &self,
        py: Python<'_>,
        snapshot: &CheckpointSnapshot,
        ticket: &str,
        user: Vec<u8>,
        metrics: BTreeMap<String, f64>,
    ) -> PyResult<()> {
        self.with(py, |saver| {
            let Some(snapshot) = lock(&snapshot.snapshot).take() else {
                return Err(Error::Refused("this snapshot is on its way already".into()));
            };
            saver.persist_measured(snapshot, ticket.parse::<Ticket>()?, user, metrics)
        })
    }

    /// Whether a snapshot would begin at once. False once closed.
    fn ready(&self) -> bool {
        lock(&self.saver).as_ref().is_some_and(Saver::ready)
    }

    /// Whether the background is at work.
    fn working(&self) -> bool {
        lock(&self.saver).as_ref().is_some_and(Saver::working)
    }

    /// The saves that ended since this was asked last.
    fn outcomes(&self) -> Vec<CheckpointOutcome> {
        let saver = lock(&self.saver);
        let outcomes = saver.as_ref().map(Saver::outcomes).unwrap_or_default();
        outcomes.into_iter().map(CheckpointOutcome::from).collect()
    }

    /// Waits until all saves have ended, at most so many seconds; whether they have.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
        self.with(py, |saver| Ok(saver.wait(timeout)))
    }

    /// The limit on what the background writes, bytes a second; 0 for as fast as the disk takes it.
    fn limit(&self, bytes_per_s: u64) {
        if let Some(saver) = lock(&self.saver).as_ref() {
            saver.pace().limit((bytes_per_s > 0).then_some(bytes_per_s));
        }
    }

    /// Mean time between failures by what the folder tells of earlier runs, seconds, and how many failures it knows.
    fn mtbf(&self, py: Python<'_>) -> PyResult<(f64, u64)> {
        self.with(py, |saver| {
            let history = saver.history();
            Ok((history.mtbf().as_secs_f64(), history.failures()))
        })
    }

    /// Has `timing` go on from what earlier runs of the job noted.
    fn resume(&self, timing: &CheckpointTiming) {
        let saver = lock(&self.saver);
        if let Some(account) = saver.as_ref().map(Saver::history).as_ref().and_then(History::account) {
            timing.resume(account);
        }
    }

    /// Notes what `timing` has seen, for the next run.
    fn note(&self, timing: &CheckpointTiming) {
        if let Some(saver) = lock(&self.saver).as_ref() {
            saver.note(timing.account());
        }
    }

    /// Finishes what was handed in; how it ended, where that was not asked for yet.
    fn close(&self, py: Python<'_>) -> Vec<CheckpointOutcome> {
        let outcomes = py.detach(|| lock(&self.saver).take().map(Saver::close).unwrap_or_default());
        outcomes.into_iter().map(CheckpointOutcome::from).collect()
    }
}

/// Tensors as they were at one moment.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct CheckpointSnapshot {
    /// None once it is on its way to disk.
    snapshot: Mutex<Option<Snapshot>>,
}

#[pymethods]
impl CheckpointSnapshot {
    /// Address and bytes of a tensor in the arena; for as long as the snapshot is not persisted.
    fn place(&self, tensor: usize) -> Option<(usize, usize)> {
        let snapshot = lock(&self.snapshot);
        let (address, bytes) = snapshot.as_ref()?.place(tensor);
        Some((address as usize, bytes))
    }

    /// Address and bytes of the arena.
    fn memory(&self) -> Option<(usize, usize)> {
        let snapshot = lock(&self.snapshot);
        let (address, bytes) = snapshot.as_ref()?.memory();
        Some((address as usize, bytes))
    }
}

/// A committed checkpoint.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct CheckpointReader {
    checkpoint: Checkpoint,
    window: Window,
}

impl CheckpointReader {
    fn of(checkpoint: Checkpoint) -> CheckpointReader {
        CheckpointReader { checkpoint, window: Window::default() }
    }
}

#[pymethods]
impl CheckpointReader {
    #[getter]
    fn name(&self) -> String {
        self.checkpoint.name()
    }

    #[getter]
    fn step(&self) -> u64 {
        self.checkpoint.manifest.step
    }

    #[getter]
    fn saved_wall_ns(&self) -> u64 {
        self.checkpoint.manifest.saved_wall_ns
    }

    #[getter]
    fn world(&self) -> usize {
        self.checkpoint.parts.len()
    }

    /// The run that saved it; None of one saved before runs had names.
    #[getter]
    fn run(&self) -> Option<String> {
        self.checkpoint.manifest.run.clone()
    }

    /// What was measured of its state, by name.
    #[getter]
    fn metrics(&self) -> BTreeMap<String, f64> {
        self.checkpoint.manifest.metrics.clone()
    }

    /// Reads every byte; CheckpointError where one is not what was saved.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        let verified = py.detach(|| self.checkpoint.verify(Check::Full, &|_, _| {}));
        verified.map_err(|error| raised(py, &error))?;
        mark_verified(&self.checkpoint);
        Ok(())
    }

    /// The bytes that were saved beside a rank's tensors.
    fn user<'py>(&self, py: Python<'py>, rank: u32) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Some(length) = self.checkpoint.user_bytes(rank).map_err(|error| raised(py, &error))? else {
            return Ok(None);
        };
        let read = |to: &mut [u8]| py.detach(|| self.checkpoint.read_user(rank, to));
        PyBytes::new_with(py, length, |to| read(to).map_err(|error| raised(py, &error))).map(Some)
    }

    /// Name, type and shape of a rank's tensors.
    fn tensors(&self, rank: usize) -> Vec<(String, &'static str, Vec<u64>)> {
        let part = self.checkpoint.parts.get(rank);
        let specs = part.into_iter().flat_map(|part| &part.tensors).map(|tensor| &tensor.spec);
        specs.map(|spec| (spec.name.clone(), spec.dtype.name(), spec.shape.clone())).collect()
    }

    /// Reads tensors of a rank, or regions of them, checked, to where the caller has memory for them.
    fn read_into(&self, py: Python<'_>, rank: u32, places: Vec<Place>) -> PyResult<()> {
        let result = py.detach(|| {
            let regions: Vec<Option<Region>> = places
                .iter()
                .map(|(_, _, _, bounds)| {
                    let (from, sizes, into, to) = bounds.clone()?;
                    Some(Region { from, sizes, into, to })
                })
                .collect();
            let targets: Vec<Target<'_>> = places
                .iter()
                .zip(&regions)
                .map(|((name, to, bytes, _), region)| Target {
                    name,
                    to: *to as *mut u8,
                    bytes: *bytes,
                    region: region.as_ref(),
                })
                .collect();
            // SAFETY: reading.py gives addresses of dense CPU tensors, each with its own memory of that many bytes, and
            // holds them until this returns; restore() runs between two training steps, when nothing else uses them.
            unsafe { self.checkpoint.read_targets(rank, &targets, &self.window) }
        });
        result.map_err(|error| raised(py, &error))
    }
}

/// The newest checkpoint in a folder that verifies, and what is wrong with newer ones: name and reason.
#[pyfunction]
pub(crate) fn newest_checkpoint(
    py: Python<'_>,
    dir: PathBuf,
) -> PyResult<(Option<CheckpointReader>, Vec<Passed>)> {
    let goes_on = || !interrupts::is_interrupted();
    let newest = interrupts::detached(py, || Store::open(dir).newest_verified(&|_, _, _| {}, &goes_on))?;
    // Making the error imports modules, where a signal that came last would be lost.
    py.check_signals()?;
    let newest = newest.map_err(|error| raised(py, &error))?;
    let passed = newest.passed.into_iter().map(|passed| (passed.name, passed.reason)).collect();
    Ok((newest.checkpoint.map(CheckpointReader::of), passed))
}

/// The checkpoint of that name or step.
#[pyfunction]
pub(crate) fn open_checkpoint(py: Python<'_>, dir: PathBuf, which: &str) -> PyResult<CheckpointReader> {
    let found = py.detach(|| Store::open(dir).checkpoint(which)).map_err(|error| raised(py, &error))?;
    Ok(CheckpointReader::of(found))
}
