//! Turns evidence into a ledger by critical path: records of the kernel programs and of the shim in, closed
//! steps and a summary out.
//!
//! Pure: no I/O, no clock of its own; the same input gives the same output, so that the live view, a replay
//! and a simulation can't differ. Memory is bounded: what does not fit is merged or dropped and counted.
//!
//! A wait is cut at the moments when the producer of the awaited batch changed what it was doing
//! ([`Handover`] says which producer and batch). Causes of a step add up to its wall time because every
//! nanosecond is given away once; nothing is normalised afterwards.

mod at_once;
mod attribute;
mod beside;
#[cfg(test)]
mod bounds;
mod cache;
mod calls;
mod consult;
mod cuts;
mod detail;
mod diagnose;
mod epochs;
mod handover;
mod kernel_steps;
mod ledger;
mod lifetimes;
mod loops;
mod main_threads;
mod members;
mod merged;
mod opening;
mod own_cpu;
mod passage;
mod periods;
mod process;
mod rank;
mod ranks;
mod reread;
mod services;
mod shim;
mod silences;
mod steps;
mod summary;
mod tally;
mod timeline;
mod trainers;
mod uncounted;
mod uneven;
mod unproven;
mod verdict;
mod words;

pub use handover::{BatchTimes, Handover, Producer, Source};
pub use ledger::Ledger;
pub use members::Member;
pub use merged::{About, JobSummary, Merged, OF_ONE_COLLECTOR};
pub use own_cpu::{HostCpus, Wanted};
pub use process::{ProcessFacts, ProcessKind};
pub use reread::{Reread, reread};
pub use silences::Silence;
pub use summary::Summary;
pub use words::by_cache;

/// How long the ledger waits for evidence, and what it knows of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long after its end a step waits for evidence before it is closed with what is known.
    pub patience_ns: u64,
    /// The same for the device's idle time, which is reported several steps later.
    pub device_patience_ns: u64,
    /// How long the job's ledger waits for a rank that has not begun a phase that others have.
    pub rank_patience_ns: u64,
    /// Shortest interval of one state that the kernel programs send as a slice of its own.
    pub slice_ns: u64,
    /// CPUs the job may use, for advice; 0 when unknown.
    pub cpus: u32,
    /// Of the machine, for advice; 0 when unknown.
    pub memory_bytes: u64,
    /// The job ran before we looked: what comes before the first hand-over is no start-up but part of a step of
    /// which nobody saw the beginning, and is left out.
    pub attached: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            patience_ns: 1_000_000_000,
            device_patience_ns: 5_000_000_000,
            rank_patience_ns: 10_000_000_000,
            slice_ns: 1_000_000,
            cpus: 0,
            memory_bytes: 0,
            attached: false,
        }
    }
}
