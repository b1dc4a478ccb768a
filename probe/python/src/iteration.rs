//! The trainer's side: one loader iterator, and the waits for its batches.

use crate::clock::Clocks;
use crate::producer::{Making, Producer, push_clocks};
use crate::{batch, clock, connection, device, fork, guard, lane};
use pyo3::exceptions::PyStopIteration;
use pyo3::intern;
use pyo3::prelude::*;
use stallscope_abi::lane::{ClockAt, IterEnd, IterStart, Wait, wait_flags};
use stallscope_ring::Fact;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A worker's own loaders (a data set may iterate one) belong to its batches.
static IS_WORKER: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_worker(worker: bool) {
    IS_WORKER.store(worker, Ordering::Relaxed);
}

pub(crate) fn is_worker() -> bool {
    IS_WORKER.load(Ordering::Relaxed)
}

/// Iterators under way that have handed over a batch of training.
static TRAINING: AtomicU64 = AtomicU64::new(0);
/// A batch of training was handed over since the last [`batch_handed`].
static HANDED: AtomicBool = AtomicBool::new(false);

/// Whether a loader's batches are being trained with.
pub(crate) fn trains() -> bool {
    TRAINING.load(Ordering::Relaxed) > 0
}

/// Whether a loader has handed over a batch of training since the last call.
pub(crate) fn batch_handed() -> bool {
    HANDED.swap(false, Ordering::Relaxed)
}

/// In a forked child: the iterators are the parent's.
pub(crate) fn forget() {
    set_worker(false);
    TRAINING.store(0, Ordering::Relaxed);
    HANDED.store(false, Ordering::Relaxed);
}

thread_local! {
    /// The iterator whose `next()` this thread is in, 0 for none: a `next()` inside another one is a part of it, also
    /// where it is the same iterator's, which code that wraps our wrapper may bring about.
    static WITHIN: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// What is known of a batch that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    worker: usize,
    samples: u64,
}

#[derive(Debug, Default)]
struct Progress {
    /// Batches handed over.
    batches: u64,
    /// One of them to train with.
    trains: bool,
    ended: bool,
    enter_ns: u64,
    flags: u64,
    /// In order of their indices; those handed over are taken out.
    asked: BTreeMap<u64, Asked>,
    /// Samples in the index that was drawn last.
    drawn: u64,
    received: u64,
    /// `next()` calls so far that found no end.
    calls: u64,
    /// Address of the fetcher that was last looked at.
    fetcher: usize,
    /// pids by worker, beside the address of the process object they came from.
    pids: Vec<(usize, u32)>,
}

/// One iterator of a loader, from its first batch to its end. Python keeps it on the iterator.
#[pyclass(frozen, module = "stallscope._native")]
#[derive(Debug)]
pub(crate) struct Iteration {
    forks: u64,
    loader: u16,
    /// Bits that hold for all its waits.
    flags: u64,
    whole_batches: bool,
    in_order: bool,
    making: Option<Arc<Making>>,
    grad_enabled: Py<PyAny>,
    /// `looked_on()`: whether the job would notice that a tensor's shape is looked at.
    looked_on: Py<PyAny>,
    /// `observe(fetcher, producer)`: called when the iterator has a fetcher that is not timed yet.
    observe_fetcher: Py<PyAny>,
    progress: Mutex<Progress>,
}

#[pymethods]
impl Iteration {
    /// A new epoch of `loader`, its `epoch`-th iterator from 0. `whole_batches`: the data set makes them itself, so
    /// that an index says nothing about samples.
    #[new]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments, one a fact")]
    #[pyo3(signature = (*, loader, epoch, in_process, pinned, whole_batches, in_order, grad_enabled, looked_on, observe_fetcher))]
    fn new(
        py: Python<'_>,
        loader: u16,
        epoch: u64,
        in_process: bool,
        pinned: bool,
        whole_batches: bool,
        in_order: bool,
        grad_enabled: Py<PyAny>,
        looked_on: Py<PyAny>,
        observe_fetcher: Py<PyAny>,
    ) -> PyResult<Iteration> {
        let flag = |set, bit| if set { bit } else { 0 };
        let iteration = Iteration {
            forks: fork::generation(),
            loader,
            flags: flag(in_process, wait_flags::IN_PROCESS) | flag(pinned && !in_process, wait_flags::PINNED),
            whole_batches,
            in_order,
            making: in_process.then(|| Producer::in_process(loader).making),
            grad_enabled,
            looked_on,
            observe_fetcher,
            progress: Mutex::default(),
        };
        let no_grad = iteration.no_grad(py)?;
        guard::observe((), || {
            let now = clock::now_ns();
            connection::look(now);
            let flags = iteration.flags | wait_flags::FIRST | no_grad;
            lane::push(&IterStart { loader, epoch, flags }.encode(now));
        });
        Ok(iteration)
    }

    /// The iterator is over: it is begun anew, or shuts its workers down. torch does the latter also inside the
    /// `next()` that finds the end, whose [`stop`] then says when it was entered.
    fn end(&self) {
        let under_way = || self.progress.try_lock().is_ok_and(|progress| progress.enter_ns != 0);
        guard::observe((), || {
            if !under_way() {
                self.finish(0);
            }
        });
    }
}

impl Drop for Iteration {
    fn drop(&mut self) {
        guard::observe((), || self.finish(0));
    }
}

impl Iteration {
    fn no_grad(&self, py: Python<'_>) -> PyResult<u64> {
        let enabled = self.grad_enabled.bind(py).call0().and_then(|enabled| enabled.is_truthy());
        Ok(if guard::known(py, enabled)?.unwrap_or(true) { 0 } else { wait_flags::NO_GRAD })
    }

    /// Samples in `data`, of which `asked` were asked for; 0 when unknown.
    fn samples(&self, data: &Bound<'_, PyAny>, asked: u64) -> PyResult<u64> {
        let looked_on = self.looked_on.bind(data.py()).call0().and_then(|looked_on| looked_on.is_truthy());
        if guard::known(data.py(), looked_on)?.unwrap_or(true) {
            return Ok(asked);
        }
        batch::samples(data, asked, self.whole_batches)
    }

    /// `enter_ns`: when the `next()` that found the end was entered, 0 if none did.
    fn finish(&self, enter_ns: u64) {
        let Ok(mut progress) = self.progress.try_lock() else { return };
        if progress.ended || self.forks != fork::generation() {
            return;
        }
        progress.ended = true;
        if progress.trains {
            TRAINING.fetch_sub(1, Ordering::Relaxed);
        }
        let end = IterEnd { loader: self.loader, batches: progress.batches, enter_ns };
        lane::push(&end.encode(clock::now_ns()));
    }

    /// pid of worker `number`, remembered with the process it came from, as workers may be replaced.
    fn pid(progress: &mut Progress, iterator: &Bound<'_, PyAny>, number: usize) -> PyResult<Option<u32>> {
        let py = iterator.py();
        let workers = iterator.getattr(intern!(py, "_workers"));
        let process = workers.and_then(|workers| workers.get_item(number));
        let Some(process) = guard::known(py, process)? else { return Ok(None) };
        if progress.pids.len() <= number {
            progress.pids.resize(number + 1, (0, 0));
        }
        let Some(known) = progress.pids.get_mut(number) else { return Ok(None) };
        if known.0 != process.as_ptr() as usize {
            let pid = process.getattr(intern!(py, "pid")).and_then(|pid| pid.extract());
            let Some(pid) = guard::known(py, pid)? else { return Ok(None) };
            *known = (process.as_ptr() as usize, pid);
        }
        Ok(Some(known.1))
    }

    /// Index of the batch that `next()` just gave, and what was known of it.
    fn handed_over(
        &self,
        progress: &mut Progress,
        iterator: &Bound<'_, PyAny>,
    ) -> Option<(u64, Option<Asked>)> {
        let py = iterator.py();
        if self.making.is_some() {
            return Some((progress.calls, Some(Asked { worker: 0, samples: progress.drawn })));
        }
        let received: u64 = iterator.getattr(intern!(py, "_rcvd_idx")).ok()?.extract().ok()?;
        let mut index = received.checked_sub(1);
        if !self.in_order {
            // Out of order `_rcvd_idx` stays behind; the batch is the one at or after it that nobody waits for now.
            let waiting = iterator.getattr(intern!(py, "_task_info")).ok()?;
            let early = progress.asked.range(received..).map(|(index, _)| *index);
            index =
                early.into_iter().find(|index| waiting.contains(*index).is_ok_and(|there| !there)).or(index);
        }
        let index = index?;
        let asked = progress.asked.remove(&index);
        if self.in_order {
            // Iterable data sets may skip indices.
            progress.asked = progress.asked.split_off(&index);
        }
        progress.received = received;
        Some((index, asked))
    }

    fn tell_workers(&self, progress: &mut Progress, iterator: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = iterator.py();
        let count = iterator.getattr(intern!(py, "_workers")).and_then(|workers| workers.len()).unwrap_or(0);
        let pids = (0..count).filter_map(|number| Self::pid(progress, iterator, number).transpose());
        connection::tell(Fact::Workers { loader: self.loader, pids: pids.collect::<PyResult<_>>()? });
        Ok(())
    }

    fn wait(&self, progress: &Progress, clocks: &Clocks, worker: u32, batch: u64, samples: u64, flags: u64) {
        let (enter_ns, flags) = (progress.enter_ns, progress.flags | flags);
        let wait = Wait { loader: self.loader, worker, enter_ns, batch, samples, flags };
        lane::push(&wait.encode(clocks.time_ns));
        push_clocks(ClockAt::WaitExit, clocks, self.loader);
    }
}

fn iteration<'py>(iterator: &Bound<'py, PyAny>) -> Option<Bound<'py, Iteration>> {
    iterator.getattr(intern!(iterator.py(), "_stallscope")).ok()?.cast_into().ok()
}

/// An index was drawn for `iterator`.
#[pyfunction]
pub(crate) fn next_index(iterator: &Bound<'_, PyAny>, index: &Bound<'_, PyAny>) {
    guard::observe((), || {
        let Some(iteration) = iteration(iterator) else { return };
        let iteration = iteration.get();
        let Ok(mut progress) = iteration.progress.try_lock() else { return };
        // A whole batch is asked for by one index, or by a list of them where the sampler gives lists.
        let several = batch::list_length(index);
        progress.drawn = several.unwrap_or(if iteration.whole_batches { 0 } else { 1 });
    });
}

/// Indices may have been sent to workers of `iterator`.
#[pyfunction]
pub(crate) fn sent(iterator: &Bound<'_, PyAny>) {
    guard::observe((), || {
        let py = iterator.py();
        let Some(iteration) = iteration(iterator) else { return };
        let Ok(mut progress) = iteration.get().progress.try_lock() else { return };
        let worker = || -> Option<(u64, usize)> {
            let next: u64 = iterator.getattr(intern!(py, "_send_idx")).ok()?.extract().ok()?;
            let last = next.checked_sub(1)?;
            let info = iterator.getattr(intern!(py, "_task_info")).ok()?.get_item(last).ok()?;
            Some((last, info.get_item(0).ok()?.extract().ok()?))
        };
        if let Some((index, worker)) = worker() {
            let samples = progress.drawn;
            progress.asked.entry(index).or_insert(Asked { worker, samples });
        }
    });
}

/// Whether a loader that is iterated from here counts: not inside a worker, nor inside another loader's `next()`.
#[pyfunction]
pub(crate) fn observing() -> bool {
    let (forks, within) = WITHIN.get();
    guard::enabled() && !IS_WORKER.load(Ordering::Relaxed) && (within == 0 || forks != fork::generation())
}

/// Workers of `iterator` came or went.
#[pyfunction]
pub(crate) fn workers_changed(iterator: &Bound<'_, PyAny>) -> PyResult<()> {
    guard::observe(Ok(()), || {
        let Some(iteration) = iteration(iterator) else { return Ok(()) };
        let iteration = iteration.get();
        let Ok(mut progress) = iteration.progress.try_lock() else { return Ok(()) };
        // A process object that is gone may have left its place to another one.
        progress.pids.clear();
        iteration.tell_workers(&mut progress, iterator)
    })
}

/// `next()` of `iterator` begins; whether [`leave`] is wanted. [`stop`] is where this or what follows raises.
#[pyfunction]
pub(crate) fn enter(iterator: &Bound<'_, PyAny>) -> PyResult<bool> {
    let entered = guard::observe(PyResult::Ok(false), || {
        let (forks, within) = WITHIN.get();
        let nested = forks == fork::generation() && within != 0;
        if nested || IS_WORKER.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some(iteration) = iteration(iterator) else { return Ok(false) };
        let iteration = iteration.get();
        if iteration.forks != fork::generation() {
            return Ok(false);
        }
        let Ok(mut progress) = iteration.progress.try_lock() else { return Ok(false) };
        WITHIN.set((fork::generation(), iterator.as_ptr() as usize));
        let first = if progress.batches == 0 { wait_flags::FIRST } else { 0 };
        progress.flags = iteration.flags | first | iteration.no_grad(iterator.py())?;
        match &iteration.making {
            Some(making) => making.expect(progress.calls),
            None if first != 0 => iteration.tell_workers(&mut progress, iterator)?,
            None => {}
        }
        let clocks = clock::clocks();
        progress.enter_ns = clocks.time_ns;
        push_clocks(ClockAt::WaitEnter, &clocks, iteration.loader);
        Ok(true)
    })?;
    if entered {
        observe_fetcher(iterator)?;
        device::enter(iterator.py())?;
    }
    Ok(entered)
}

/// Without workers, sees to it that the iterator's fetcher is timed.
fn observe_fetcher(iterator: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = iterator.py();
    let Some(iteration) = iteration(iterator) else { return Ok(()) };
    let Some(making) = &iteration.get().making else { return Ok(()) };
    let Ok(fetcher) = iterator.getattr(intern!(py, "_dataset_fetcher")) else { return Ok(()) };
    {
        let Ok(mut progress) = iteration.get().progress.try_lock() else { return Ok(()) };
        if std::mem::replace(&mut progress.fetcher, fetcher.as_ptr() as usize) == fetcher.as_ptr() as usize {
            return Ok(());
        }
    }
    let producer = Bound::new(py, Producer { making: making.clone() })?;
    guard::ours(iteration.get().observe_fetcher.call1(py, (fetcher, producer)).map(drop))
}

/// `next()` of `iterator` gave `data`.
#[pyfunction]
pub(crate) fn leave(iterator: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<()> {
    let clocks = clock::clocks();
    let now = clocks.time_ns;
    guard::observe(PyResult::Ok(()), || {
        WITHIN.set((0, 0));
        let Some(iteration) = iteration(iterator) else { return Ok(()) };
        let iteration = iteration.get();
        let Ok(mut progress) = iteration.progress.try_lock() else { return Ok(()) };
        let (index, asked) =
            iteration.handed_over(&mut progress, iterator).unwrap_or((progress.batches, None));
        let pid = match asked {
            Some(asked) if iteration.making.is_none() => {
                Iteration::pid(&mut progress, iterator, asked.worker)
            }
            _ => Ok(None),
        };
        let samples = iteration.samples(data, asked.map_or(0, |asked| asked.samples));
        // The batch is recorded even where an interrupt came between.
        let (known_pid, known_samples) =
            (pid.as_ref().ok().copied().flatten(), samples.as_ref().ok().copied());
        iteration.wait(&progress, &clocks, known_pid.unwrap_or(0), index, known_samples.unwrap_or(0), 0);
        progress.batches += 1;
        progress.calls += 1;
        progress.enter_ns = 0;
        if progress.flags & wait_flags::NO_GRAD == 0 {
            HANDED.store(true, Ordering::Relaxed);
            if !std::mem::replace(&mut progress.trains, true) && !progress.ended {
                TRAINING.fetch_add(1, Ordering::Relaxed);
            }
        }
        connection::look(now);
        pid.and(samples).map(drop)
    })?;
    device::leave(iterator.py(), now)
}

/// `next()` of `iterator` raised `error`; also one that isn't observed.
#[pyfunction]
pub(crate) fn stop(iterator: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>) {
    let clocks = clock::clocks();
    let now = clocks.time_ns;
    guard::observe((), || {
        if WITHIN.get() != (fork::generation(), iterator.as_ptr() as usize) {
            return;
        }
        WITHIN.set((0, 0));
        let Some(iteration) = iteration(iterator) else { return };
        let iteration = iteration.get();
        let enter_ns = {
            let Ok(mut progress) = iteration.progress.try_lock() else { return };
            if progress.enter_ns == 0 {
                return;
            }
            progress.calls += 1;
            if !error.is_instance_of::<PyStopIteration>() {
                let index = if iteration.making.is_some() { progress.calls - 1 } else { progress.received };
                iteration.wait(&progress, &clocks, 0, index, 0, wait_flags::FAILED);
            }
            std::mem::take(&mut progress.enter_ns)
        };
        if error.is_instance_of::<PyStopIteration>() {
            iteration.finish(enter_ns);
        }
        connection::look(now);
    });
}
