//! The vocabulary: job, rank, phase, step, ledger, knob, decision, diagnosis. A leaf that everybody may know.
//!
//! Units are in the names: `_ns`, `_bytes`, `_share` (0 to 1). Monotonic times are `CLOCK_MONOTONIC`
//! nanoseconds, wall times nanoseconds since the Unix epoch.

mod cache;
mod cause;
mod control;
mod detail;
mod held;
mod job;
mod main_threads;
mod node;
mod python_frame;
mod remedy;
mod summary;

pub use cache::{
    CacheCurve, CachePeriod, CachePoint, CacheState, CacheSummary, CacheUses, JobCache, LoaderEpochs, NoCurve,
};
pub use cause::{COMPUTE_BOUND_SHARE, Cause, Causes, is_data_bound};
pub use control::{
    Act, Advice, AuditEvent, BatchService, Budgets, CONTROLLED_KNOBS, Estimate, Knob, KnobRequest, KnobState,
    Rates, TuneMode,
};
pub use detail::{
    CheckpointEvent, CriticalPiece, Doing, FileWait, MountWait, Probe, Segment, StepDetail, StepLane,
    WorkerPeriod,
};
pub use held::HeldSummary;
pub use job::{EvidenceKinds, HostFacts, JobFacts, LoaderFacts, Phase, RankFacts, StepLedger};
pub use main_threads::MainThreads;
pub use node::NodeSummary;
pub use python_frame::PythonFrame;
pub use remedy::{Either, Expected, Remedy, RemedyKind, WORTHWHILE};
pub use summary::{
    CheckpointAccount, CheckpointRule, Checkpoints, Diagnosis, EvidenceState, Loss, Overhead, PhaseSummary,
    RankSummary, RunSummary, Verdict, WorkerLoad, are_spare,
};
