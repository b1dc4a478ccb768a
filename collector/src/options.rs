//! What a session is asked to do.

use crate::metrics::Metrics;
use stallscope_model::{Budgets, RunSummary, TuneMode};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Where kernel evidence may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelChoice {
    /// The node's collector, or ourselves as root.
    Auto,
    Off,
    /// One that sudo starts for this job.
    Sudo,
}

#[derive(Debug)]
pub struct RunOptions {
    pub command: Vec<OsString>,
    pub name: Option<String>,
    pub output: Option<PathBuf>,
    pub kernel: KernelChoice,
    pub shim: bool,
    /// Bytes of memory for the files of the data set that the job trains on, under torch's own loader; 0 for none. Without,
    /// a controller that was granted memory begins with a small one.
    pub cache_bytes: Option<u64>,
    pub syscalls: bool,
    pub metrics: Option<Metrics<RunSummary>>,
    /// A controller from the first step on.
    pub tune: Option<TuneOptions>,
    /// File systems that this job alone sees.
    pub mounts: Vec<PrivateMount>,
}

/// A file system (FUSE) that a job alone sees, and the program that serves it: with `/dev/fuse` as its standard input, it says
/// [`READY`](crate::READY) on its standard output, a socket, and waits for a line from there. A sentence instead is why it can't.
#[derive(Clone, Debug)]
pub struct PrivateMount {
    /// A folder; what it has is hidden from the job.
    pub target: PathBuf,
    /// What `/proc/mounts` has for where it comes from.
    pub source: OsString,
    /// And for its type: `fuse.`, and what it is.
    pub fs_type: String,
    pub server: PathBuf,
    pub arguments: Vec<OsString>,
}

/// What a controller may do, and use.
#[derive(Clone, Copy, Debug)]
pub struct TuneOptions {
    pub mode: TuneMode,
    pub budgets: Budgets,
}

impl TuneOptions {
    /// Of the memory that the controller is granted, what a job's first cache takes: enough for its hits to show what a larger
    /// one would bring, and nothing that anybody misses if that is nothing.
    pub(crate) fn first_cache_bytes(&self) -> Option<u64> {
        Some(first_cache_of(self.budgets.memory_bytes.filter(|_| self.mode == TuneMode::Act)?))
    }
}

/// What a first cache takes where so much is granted.
pub(crate) fn first_cache_of(granted_bytes: u64) -> u64 {
    const PART: u64 = 256;
    (granted_bytes / PART).clamp(4 << 20, 64 << 20)
}

#[derive(Debug)]
pub struct AttachOptions {
    /// A pid, or a running job's name or prefix.
    pub job: String,
    pub period: Option<Duration>,
    pub output: Option<PathBuf>,
    pub syscalls: bool,
    pub metrics: Option<Metrics<RunSummary>>,
    /// Bytes of the job's files to keep in the page cache; at least one.
    pub cache_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_controller_that_may_act_and_was_granted_memory_begins_with_a_cache() {
        let first = |mode, memory_bytes| {
            TuneOptions { mode, budgets: Budgets { memory_bytes, ..Budgets::default() } }.first_cache_bytes()
        };
        assert_eq!(first(TuneMode::Act, Some(4 << 30)), Some(16 << 20));
        assert_eq!(first(TuneMode::Act, Some(1 << 40)), Some(64 << 20));
        assert_eq!(first(TuneMode::Act, Some(1 << 20)), Some(4 << 20));
        assert_eq!([first(TuneMode::Act, None), first(TuneMode::Advise, Some(4 << 30))], [None, None]);
    }
}
