//! A run as a Perfetto trace (<https://perfetto.dev>), for its viewer and its trace processor.
//!
//! Under the job a group a rank: a track a phase with its steps, in each step the causes of its time; what trainer
//! and workers did in the steps that were kept in full; checkpoints; samples a second and shares of stall over time; what its caches
//! gave; what each knob was set to. Beside the ranks: what was
//! decided.
//! Times are on the wall clock.

mod cache;
mod messages;
mod ranks;
mod steps;
mod trace;
mod tuning;

use crate::{Error, Run};
use messages::{BuiltinClock, Clock};
use ranks::Ranks;
use stallscope_store::Recording;
use std::io::Write;
use trace::{Place, Trace};

/// Writes the trace of `run` to `out`. About 260 bytes a row of the recording's steps: those that were merged
/// there are one slice.
///
/// # Errors
/// The steps cannot be read once more, or `out` cannot be written.
pub fn write(run: &Run, out: &mut dyn Write) -> Result<(), Error> {
    let mut trace = Trace::begin(out, clocks(run)?)?;
    let name = match run.summary.job.name.as_str() {
        "" => "job",
        name => name,
    };
    let job = trace.track(name, Place { under: None, order: 0 })?;
    let mut ranks = Ranks::new(run, job);
    steps::write(run, &mut ranks, &mut trace)?;
    ranks::tasks(run, &mut ranks, &mut trace)?;
    ranks::checkpoints(run, &mut ranks, &mut trace)?;
    ranks::counters(run, &mut ranks, &mut trace)?;
    cache::write(run, &mut ranks, &mut trace)?;
    tuning::write(run, job, &mut ranks, &mut trace)?;
    Ok(trace.end()?)
}

/// One moment on the clocks of the machine, by which other traces of it can be aligned; of a run of several machines
/// the wall clock alone.
fn clocks(run: &Run) -> Result<Vec<Clock>, Error> {
    let anchor = match run.files.as_slice() {
        // The last one, since a clock that was set counts as it was after that.
        [only] => Recording::open(&only.path)?.anchors()?.pop(),
        _ => None,
    };
    let clock = |clock: BuiltinClock, at_ns: u64| Clock { clock_id: clock as u32, timestamp: Some(at_ns) };
    Ok(match anchor {
        Some(anchor) => vec![
            clock(BuiltinClock::Realtime, anchor.wall_ns),
            clock(BuiltinClock::Monotonic, anchor.monotonic_ns),
            clock(BuiltinClock::Boottime, anchor.boottime_ns),
        ],
        None => vec![clock(BuiltinClock::Realtime, run.summary.job.started_wall_ns)],
    })
}
