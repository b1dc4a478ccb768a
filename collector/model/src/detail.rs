//! What lies behind the sums of a summary: single steps, checkpoints, files and worker loads over time.

use crate::{Cause, Phase, WorkerLoad};
use serde::{Deserialize, Serialize};

/// One step in full, kept for the steps worth looking at: the slowest of every minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepDetail {
    pub rank: u32,
    pub loader: u16,
    pub phase: Phase,
    /// As in the step's ledger.
    pub index: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    /// The trainer first, then the worker that made the batch, where there was one.
    pub lanes: Vec<StepLane>,
    /// What the step's time went to, in order and without gaps from start to end.
    pub critical: Vec<CriticalPiece>,
}

/// What one task did during a step. A worker's lane may begin before the step, with the making of its batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLane {
    pub pid: u32,
    /// "trainer", "worker".
    pub role: String,
    /// In order; gaps are time of which nothing is known.
    pub segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub start_ns: u64,
    pub end_ns: u64,
    pub doing: Doing,
}

/// A piece of a step on its critical path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CriticalPiece {
    pub start_ns: u64,
    pub end_ns: u64,
    pub cause: Cause,
    /// Which of the step's lanes held it up.
    pub lane: usize,
}

/// What a task mostly did in an interval of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// On a CPU.
    Computing,
    /// Runnable, without a CPU.
    Runnable,
    /// Blocked in a read or a page fault.
    Reading,
    /// Blocked in a write, fsync or rename.
    Writing,
    /// Blocked on a socket.
    Network,
    /// Blocked until another task of the job goes on: pipe, futex, poll.
    Waiting,
    /// Blocked in something else.
    Other,
}

impl Doing {
    pub const ALL: [Doing; 7] = [
        Doing::Computing,
        Doing::Runnable,
        Doing::Reading,
        Doing::Writing,
        Doing::Network,
        Doing::Waiting,
        Doing::Other,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Doing::Computing => "computing",
            Doing::Runnable => "runnable",
            Doing::Reading => "reading",
            Doing::Writing => "writing",
            Doing::Network => "network",
            Doing::Waiting => "waiting",
            Doing::Other => "other",
        }
    }
}

/// One call that saved a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointEvent {
    pub rank: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    /// "torch.save", "dcp.save", "dcp.async_save", "safetensors", "other".
    pub saver: String,
    /// [`Cause::Snapshot`] or [`Cause::Persist`].
    pub cause: Cause,
    /// In another thread or process: the trainer went on.
    pub background: bool,
    /// 0 when unknown.
    pub bytes: u64,
}

/// What a worker did within one period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerPeriod {
    /// Start of the period, a multiple of its length (as a roll-up's).
    pub start_ns: u64,
    pub rank: u32,
    /// `u16::MAX` without a shim, which alone knows loaders.
    pub loader: u16,
    /// Number of the worker within its loader, from 0; its pid without a shim.
    pub worker: u32,
    /// Load within this period alone.
    pub load: WorkerLoad,
}

impl WorkerPeriod {
    /// How long a period is.
    pub const LENGTH_NS: u64 = 10_000_000_000;
}

/// Time that tasks of the job were blocked reading or writing one file: load, not stall.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWait {
    /// As far as known: its last parts, or its inode's number.
    pub path: String,
    /// Mount point.
    pub mount: String,
    pub wait_ns: u64,
    /// Times a task was blocked.
    pub waits: u64,
}

/// The same over all files of a mount, those without a line of their own included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountWait {
    pub mount: String,
    /// "ext4", "nfs4", …
    pub fs_type: String,
    pub wait_ns: u64,
    pub waits: u64,
}

/// One source of evidence, and whether it is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    pub name: String,
    pub on: bool,
    /// Why it is off; empty when it is on.
    pub reason: String,
}
