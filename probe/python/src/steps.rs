//! Where a training step ends in a loop that no loader drives: with the optimiser's step, or where the script says so.

use crate::producer::push_clocks;
use crate::{clock, connection, fork, guard, iteration, lane};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use stallscope_abi::lane::{ClockAt, Step, StepSource};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// More optimisers than this between two steps of the one that leads are taken for new ones.
const MAX_OTHERS: usize = 4096;

static OPTIMISERS: Mutex<Optimisers> = Mutex::new(Optimisers { leads: 0, others: Vec::new() });
/// The optimiser's steps are not reported: the script reports its own, or what training waits for can't be derived from them.
static WITHHELD: AtomicBool = AtomicBool::new(false);
static BEGUN: AtomicBool = AtomicBool::new(false);
/// `begin()`: called at the first step of a process.
static BEGIN: Mutex<Option<Py<PyAny>>> = Mutex::new(None);

thread_local! {
    /// Fork generation, plus 1, in which this was found out, and whether this is the process's main thread.
    static MAIN_THREAD: Cell<(u64, bool)> = const { Cell::new((0, false)) };
}

/// The optimisers of a process by what they are known by. The one that leads ends the steps; where there are several (a GAN's
/// two, one for each kind of parameters), the others' are parts of them.
struct Optimisers {
    leads: usize,
    /// Those that have stepped since the one that leads did.
    others: Vec<usize>,
}

impl Optimisers {
    /// Whether a step of this one ends a training step. The first one leads until another steps twice without it: that
    /// one steps more often, or has taken its place.
    #[inline]
    fn ends_a_step(&mut self, optimiser: usize) -> bool {
        let ends = self.leads == optimiser || self.leads == 0 || self.others.contains(&optimiser);
        if ends {
            self.leads = optimiser;
            self.others.clear();
        } else if self.others.len() < MAX_OTHERS {
            self.others.push(optimiser);
        }
        ends
    }
}

/// `begin` gets called without arguments at the first step of this process and of each of its forked children.
#[pyfunction]
pub(crate) fn watch_steps(begin: Py<PyAny>) {
    if let Ok(mut known) = BEGIN.try_lock() {
        *known = Some(begin);
    }
}

/// The optimiser's steps are not reported from now on.
#[pyfunction]
pub(crate) fn withhold_steps() {
    WITHHELD.store(true, Ordering::Relaxed);
}

/// A step of `optimiser` ended.
#[pyfunction]
pub(crate) fn optimiser_stepped(optimiser: &Bound<'_, PyAny>) -> PyResult<()> {
    guard::observe(Ok(()), || {
        if WITHHELD.load(Ordering::Relaxed) || iteration::is_worker() || !in_main_thread() {
            return Ok(());
        }
        let Ok(mut optimisers) = OPTIMISERS.try_lock() else { return Ok(()) };
        if !optimisers.ends_a_step(known_by(optimiser)) {
            return Ok(());
        }
        drop(optimisers);
        ended(optimiser.py(), StepSource::Optimiser)
    })
}

/// Its class and the first of the parameters that it trains: a script may make it anew for each step, as one that sets its learning rate that way
/// does. One that is a part of another has that one's parameters, and is of another class.
#[inline]
fn known_by(optimiser: &Bound<'_, PyAny>) -> usize {
    let kind = optimiser.get_type().as_ptr() as usize;
    let first = first_parameter(optimiser).unwrap_or(optimiser.as_ptr() as usize);
    first.rotate_left(32) ^ kind
}

/// Looked at as plain data: anything else would be code of the job's.
fn first_parameter(optimiser: &Bound<'_, PyAny>) -> Option<usize> {
    let py = optimiser.py();
    let own = optimiser.getattr(intern!(py, "__dict__")).ok()?;
    let groups = own.cast_exact::<PyDict>().ok()?.get_item(intern!(py, "param_groups")).ok()??;
    let group = groups.cast_exact::<PyList>().ok()?.get_item(0).ok()?;
    let parameters = group.cast_exact::<PyDict>().ok()?.get_item(intern!(py, "params")).ok()??;
    Some(parameters.cast_exact::<PyList>().ok()?.get_item(0).ok()?.as_ptr() as usize)
}

/// The script says that a step ended.
#[pyfunction]
pub(crate) fn script_stepped(py: Python<'_>) -> PyResult<()> {
    guard::observe(Ok(()), || {
        if iteration::is_worker() || !in_main_thread() {
            return Ok(());
        }
        withhold_steps();
        ended(py, StepSource::Script)
    })
}

#[inline]
fn ended(py: Python<'_>, source: StepSource) -> PyResult<()> {
    let (trains, handed) = (iteration::trains(), iteration::batch_handed());
    // With a batch in hand one step says that it is trained with; more say nothing new.
    if trains && !handed {
        return Ok(());
    }
    let clocks = clock::clocks();
    let now = clocks.time_ns;
    if !BEGUN.swap(true, Ordering::Relaxed) {
        begin(py)?;
        connection::look(now);
    }
    lane::push(&Step { source }.encode(now));
    if !handed {
        push_clocks(ClockAt::Step, &clocks, u16::MAX);
        connection::look(now);
    }
    Ok(())
}

#[cold]
fn begin(py: Python<'_>) -> PyResult<()> {
    let begin = BEGIN.try_lock().ok().and_then(|begin| begin.as_ref().map(|begin| begin.clone_ref(py)));
    begin.map_or(Ok(()), |begin| guard::ours(begin.call0(py).map(drop)))
}

/// The ledger knows what the main thread does, so that steps of another one would be held against the wrong time.
#[inline]
fn in_main_thread() -> bool {
    let generation = fork::generation() + 1;
    let (known_in, is_main) = MAIN_THREAD.get();
    if known_in == generation {
        return is_main;
    }
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    MAIN_THREAD.set((generation, is_main));
    is_main
}

/// In a forked child: optimisers and steps are the parent's.
pub(crate) fn forget() {
    BEGUN.store(false, Ordering::Relaxed);
    WITHHELD.store(false, Ordering::Relaxed);
    if let Ok(mut optimisers) = OPTIMISERS.try_lock() {
        optimisers.leads = 0;
        optimisers.others.clear();
    }
}

/// Tells `count` steps of one optimiser, without clocks, and gives the CPU time this took, ns.
#[pyfunction]
pub(crate) fn bench_steps(optimiser: &Bound<'_, PyAny>, count: u64) -> u64 {
    let began = clock::thread_cpu_ns();
    for _ in 0..count {
        let Ok(mut optimisers) = OPTIMISERS.try_lock() else { break };
        if in_main_thread() && optimisers.ends_a_step(known_by(optimiser)) {
            drop(optimisers);
            lane::push(&Step { source: StepSource::Optimiser }.encode(clock::now_ns()));
        }
    }
    clock::thread_cpu_ns() - began
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many steps of `turns` end a training step, the first turn aside.
    fn steps(turns: &[usize], repeat: usize) -> usize {
        let mut optimisers = Optimisers { leads: 0, others: Vec::new() };
        let mut turn = || turns.iter().filter(|optimiser| optimisers.ends_a_step(**optimiser)).count();
        turn();
        (0..repeat).map(|_| turn()).sum()
    }

    #[test]
    fn several_optimisers_of_one_turn_make_one_step() {
        assert_eq!(steps(&[1], 100), 100);
        assert_eq!(steps(&[1, 2], 100), 100);
        assert_eq!(steps(&(1..200).collect::<Vec<_>>(), 100), 100);
    }

    #[test]
    fn the_one_that_steps_most_often_leads() {
        assert_eq!(steps(&[2, 1, 1, 1, 1, 1], 100), 500);
        assert_eq!(steps(&[1, 1, 1, 1, 1, 2], 100), 500);
    }

    #[test]
    fn a_new_optimiser_takes_the_place_of_one_that_is_gone() {
        let mut optimisers = Optimisers { leads: 0, others: Vec::new() };
        assert!(optimisers.ends_a_step(1));
        assert!(!optimisers.ends_a_step(2));
        assert!((0..10).all(|_| optimisers.ends_a_step(2)));
    }
}
