//! The events that Python code reports: a function for each, with the event's fields as keyword arguments. Those of waits,
//! batches and steps are reported where they are measured.

use crate::{clock, fork, guard, lane};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stallscope_abi::lane::{
    Bye, CacheCurve, CacheState, CacheUses, Caller, Checkpoint, CheckpointCost, CheckpointRule, Collective,
    DeviceIdle, Saver, Stage,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Fork generation, plus 1, of the process that has sent its goodbye.
static SENT_GOODBYE: AtomicU64 = AtomicU64::new(0);

fn named<T>(name: &str, of_name: fn(&str) -> Option<T>) -> PyResult<T> {
    of_name(name).ok_or_else(|| PyValueError::new_err(format!("there is no event with {name:?}")))
}

/// Uses of samples since the last report: by one batch, or beside batches.
#[pyfunction]
#[pyo3(signature = (*, loader, hits = 0, late = 0, misses = 0, prefetched = 0, substitutions = 0, pool_bytes = 0, source_bytes = 0))]
#[allow(clippy::too_many_arguments, reason = "the fields of an event, named by the caller")]
pub(crate) fn cache_uses(
    loader: u16,
    hits: u32,
    late: u32,
    misses: u32,
    prefetched: u32,
    substitutions: u32,
    pool_bytes: u64,
    source_bytes: u64,
) {
    let uses = CacheUses { loader, prefetched, hits, substitutions, misses, late, pool_bytes, source_bytes };
    guard::observe((), || lane::push(&uses.encode(clock::now_ns())));
}

/// A data set's part of the pool.
#[pyfunction]
#[pyo3(signature = (*, loader, kept_bytes, capacity_bytes, evictions, kept_samples))]
pub(crate) fn cache_state(
    loader: u16,
    kept_bytes: u64,
    capacity_bytes: u64,
    evictions: u64,
    kept_samples: u64,
) {
    let state = CacheState { loader, kept_bytes, capacity_bytes, evictions, kept_samples };
    guard::observe((), || lane::push(&state.encode(clock::now_ns())));
}

/// A miss-ratio curve: `points` are (bytes, uses, misses), the smallest size first.
#[pyfunction]
#[pyo3(signature = (*, loader, ranks, dataset_bytes, points))]
pub(crate) fn cache_curve(loader: u16, ranks: u32, dataset_bytes: u64, points: Vec<(u64, u64, u64)>) {
    guard::observe((), || {
        let Ok(count) = u8::try_from(points.len()) else { return };
        let curve = CacheCurve { points: count, dataset_bytes, ..no_curve(loader, ranks) };
        let now_ns = clock::now_ns();
        for (point, (capacity_bytes, uses, misses)) in (0..).zip(points) {
            lane::push(&CacheCurve { point, capacity_bytes, uses, misses, ..curve }.encode(now_ns));
        }
    });
}

/// Ranks of several jobs share the cache: it has no curve.
#[pyfunction]
#[pyo3(signature = (*, loader, ranks))]
pub(crate) fn cache_is_mixed(loader: u16, ranks: u32) {
    guard::observe((), || lane::push(&no_curve(loader, ranks).encode(clock::now_ns())));
}

fn no_curve(loader: u16, ranks: u32) -> CacheCurve {
    CacheCurve {
        loader,
        point: 0,
        points: 0,
        ranks: u8::try_from(ranks).unwrap_or(u8::MAX),
        capacity_bytes: 0,
        uses: 0,
        misses: 0,
        dataset_bytes: 0,
    }
}

/// A checkpoint call ended. ValueError where a name is none of the ABI's.
#[pyfunction]
#[pyo3(signature = (*, saver, stage, caller, began_ns, ended_ns, bytes))]
pub(crate) fn checkpoint(
    saver: &str,
    stage: &str,
    caller: &str,
    began_ns: u64,
    ended_ns: u64,
    bytes: u64,
) -> PyResult<()> {
    let saver = named(saver, Saver::of_name)?;
    let stage = named(stage, Stage::of_name)?;
    let caller = named(caller, Caller::of_name)?;
    let call = Checkpoint { saver, began_ns, stage, bytes, caller };
    guard::observe((), || lane::push(&call.encode(ended_ns)));
    Ok(())
}

/// What saves have cost, of the time trained.
#[pyfunction]
#[pyo3(signature = (*, spent_ns, trained_ns, budget_ppm, failed))]
pub(crate) fn checkpoint_cost(spent_ns: u64, trained_ns: u64, budget_ppm: u64, failed: u64) {
    let cost = CheckpointCost { spent_ns, trained_ns, budget_ppm, failed };
    guard::observe((), || lane::push(&cost.encode(clock::now_ns())));
}

/// What a checkpointer's own rule goes by, and the interval that it has for it.
#[pyfunction]
#[pyo3(signature = (*, cost_ns, persist_ns, mtbf_ns, interval_ns))]
pub(crate) fn checkpoint_rule(cost_ns: u64, persist_ns: u64, mtbf_ns: u64, interval_ns: u64) {
    let rule = CheckpointRule { cost_ns, persist_ns, mtbf_ns, interval_ns };
    guard::observe((), || lane::push(&rule.encode(clock::now_ns())));
}

/// For how long the device had no work in the wait that ended at `wait_exit_ns`.
#[pyfunction]
#[pyo3(signature = (*, idle_ns, wait_exit_ns))]
pub(crate) fn device_idle(idle_ns: u64, wait_exit_ns: u64) {
    let idle = DeviceIdle { idle_ns, wait_exit_ns };
    guard::observe((), || lane::push(&idle.encode(clock::now_ns())));
}

/// A collective operation blocked the caller. Its arguments may go by position, as each keyword costs half as much as the
/// event: a job may do many of them in a step.
#[pyfunction]
pub(crate) fn collective(began_ns: u64, ended_ns: u64) {
    guard::observe((), || lane::push(&Collective { began_ns }.encode(ended_ns)));
}

/// This process ends in an orderly way: reported once.
#[pyfunction]
pub(crate) fn bye() {
    guard::observe((), || {
        // Generations count from 0.
        let generation = fork::generation() + 1;
        if SENT_GOODBYE.swap(generation, Ordering::Relaxed) == generation {
            return;
        }
        lane::push(&Bye {}.encode(clock::now_ns()));
    });
}

/// Pushes `count` records, without reading a clock, and gives the CPU time this took, ns.
#[pyfunction]
pub(crate) fn bench_push(count: u64) -> u64 {
    let began = clock::thread_cpu_ns();
    for n in 0..count {
        lane::push(&Collective { began_ns: n }.encode(n));
    }
    clock::thread_cpu_ns() - began
}
