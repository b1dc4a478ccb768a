//! The shim inside the training process: what runs for every sample and every batch.
//!
//! Nothing here may disturb the job. Observing code never raises, never waits, and runs behind
//! [`guard::observe`], which turns the shim off at the first fault. All of it runs with Python's interpreter lock
//! held, and runs no Python code that the job did not ask for, so that signal handlers keep raising where they
//! would have without us.

mod batch;
mod checkpoint;
mod checkpoint_timing;
mod clock;
mod connection;
mod descriptors;
mod device;
mod events;
mod fetcher;
mod fork;
mod ghost;
mod guard;
mod interrupts;
mod introduction;
mod iteration;
mod joint;
mod knobs;
mod lane;
mod opens;
mod own_fd;
mod own_memory;
mod pack;
mod pack_shuffle;
mod packages;
mod pictures;
mod planner;
mod pool;
mod producer;
mod queues;
mod reader;
mod steps;
mod substitutes;
mod units;

use pyo3::prelude::*;

/// CLOCK_MONOTONIC, ns.
#[pyfunction]
fn now() -> u64 {
    clock::now_ns()
}

/// Whether the shim still measures.
#[pyfunction]
fn enabled() -> bool {
    guard::enabled()
}

/// Turns the shim off for this process; `what` says why, in a sentence.
#[pyfunction]
fn disable(what: &str) {
    guard::disable(what);
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for function in [
        wrap_pyfunction!(now, module)?,
        wrap_pyfunction!(events::cache_uses, module)?,
        wrap_pyfunction!(events::cache_state, module)?,
        wrap_pyfunction!(events::cache_curve, module)?,
        wrap_pyfunction!(events::cache_is_mixed, module)?,
        wrap_pyfunction!(events::checkpoint, module)?,
        wrap_pyfunction!(events::checkpoint_cost, module)?,
        wrap_pyfunction!(events::checkpoint_rule, module)?,
        wrap_pyfunction!(events::device_idle, module)?,
        wrap_pyfunction!(events::collective, module)?,
        wrap_pyfunction!(events::bye, module)?,
        wrap_pyfunction!(events::bench_push, module)?,
        wrap_pyfunction!(enabled, module)?,
        wrap_pyfunction!(disable, module)?,
        wrap_pyfunction!(connection::configure, module)?,
        wrap_pyfunction!(connection::fact, module)?,
        wrap_pyfunction!(connection::introduce, module)?,
        wrap_pyfunction!(connection::poll, module)?,
        wrap_pyfunction!(device::watch_device, module)?,
        wrap_pyfunction!(checkpoint::newest_checkpoint, module)?,
        wrap_pyfunction!(checkpoint::open_checkpoint, module)?,
        wrap_pyfunction!(steps::watch_steps, module)?,
        wrap_pyfunction!(steps::withhold_steps, module)?,
        wrap_pyfunction!(steps::optimiser_stepped, module)?,
        wrap_pyfunction!(steps::script_stepped, module)?,
        wrap_pyfunction!(steps::bench_steps, module)?,
        wrap_pyfunction!(fork::forked, module)?,
        wrap_pyfunction!(descriptors::is_one_open_file, module)?,
        wrap_pyfunction!(own_memory::own_shared_memory, module)?,
        wrap_pyfunction!(opens::add_read, module)?,
        wrap_pyfunction!(pool::run_pool, module)?,
        wrap_pyfunction!(knobs::knob, module)?,
        wrap_pyfunction!(knobs::knob_is, module)?,
        wrap_pyfunction!(knobs::knob_unavailable, module)?,
        wrap_pyfunction!(knobs::knob_gone, module)?,
        wrap_pyfunction!(knobs::turned, module)?,
        wrap_pyfunction!(knobs::requests, module)?,
        wrap_pyfunction!(knobs::answer, module)?,
        wrap_pyfunction!(iteration::next_index, module)?,
        wrap_pyfunction!(iteration::sent, module)?,
        wrap_pyfunction!(iteration::observing, module)?,
        wrap_pyfunction!(iteration::workers_changed, module)?,
        wrap_pyfunction!(iteration::enter, module)?,
        wrap_pyfunction!(iteration::leave, module)?,
        wrap_pyfunction!(iteration::stop, module)?,
        wrap_pyfunction!(units::parse_bytes, module)?,
        wrap_pyfunction!(units::parse_duration, module)?,
        wrap_pyfunction!(units::duration_in_words, module)?,
        wrap_pyfunction!(units::bytes_in_words, module)?,
        wrap_pyfunction!(units::memory_in_words, module)?,
        wrap_pyfunction!(units::memory_to_hold, module)?,
    ] {
        module.add_function(function)?;
    }
    module.add_class::<ghost::Ghost>()?;
    module.add_class::<joint::Joint>()?;
    module.add_class::<iteration::Iteration>()?;
    module.add_class::<planner::Planner>()?;
    module.add_class::<pool::Space>()?;
    module.add_class::<producer::Producer>()?;
    module.add_class::<fetcher::Fetch>()?;
    module.add_class::<opens::Open>()?;
    module.add_class::<queues::IndexQueue>()?;
    module.add_class::<queues::DataQueue>()?;
    module.add_class::<reader::LaneReader>()?;
    module.add_class::<checkpoint::CheckpointSaver>()?;
    module.add_class::<checkpoint::CheckpointOutcome>()?;
    module.add_class::<checkpoint::CheckpointSnapshot>()?;
    module.add_class::<checkpoint::CheckpointReader>()?;
    module.add_class::<checkpoint_timing::CheckpointTiming>()?;
    interrupts::watch();
    module.add_class::<pack::PackReader>()?;
    module.add_class::<pack::PackImages>()?;
    module.add_class::<pack_shuffle::PackShuffle>()?;
    module.add_class::<packages::RunPackages>()?;
    module.add_class::<pictures::PictureDecoder>()?;
    module.add_class::<pictures::Pictures>()?;
    module.add_class::<reader::KnobTurner>()?;
    module.add_class::<substitutes::Substitutes>()?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("LANE_VERSION", stallscope_abi::lane::VERSION)?;
    module.add("PROTOCOL_VERSION", stallscope_ring::PROTOCOL_VERSION)?;
    Ok(())
}
