//! What a controller observes, and what it answers.

use stallscope_model::{AuditEvent, BatchService, CacheSummary, CheckpointAccount, Knob, Phase, StepLedger};

/// The job as of one moment, about once a second.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    pub now_ns: u64,
    pub ranks: Vec<RankObservation>,
    pub node: NodeState,
}

/// One rank since the last observation. Steps become known about a second after they ended.
#[derive(Clone, Debug)]
pub struct RankObservation {
    pub rank: u32,
    /// All steps that ended before are included; `now_ns - seen_until_ns` is how stale this is.
    pub seen_until_ns: u64,
    /// Of the newest step.
    pub phase: Phase,
    /// Closed since the last observation, of all phases, in order.
    pub steps: Vec<StepLedger>,
    /// A sample of the batches made.
    pub services: Vec<BatchService>,
    /// The rank's knobs as they stand.
    pub knobs: Vec<Knob>,
    /// What the caches of its loaders gave and how they stand.
    pub caches: Vec<CacheSummary>,
    /// What its checkpointer last reported; `None` without one.
    pub checkpoints: Option<CheckpointAccount>,
    /// Resident memory of trainer and workers, shared pages counted once, and with the first rank what the job's caches keep;
    /// 0 when unknown.
    pub memory_bytes: u64,
    /// Of that, each worker's; empty when unknown.
    pub worker_bytes: Vec<u64>,
    /// CPU time of trainer and workers since the job began; 0 when unknown.
    pub cpu_ns: u64,
    /// Open descriptors of the trainer; 0 when unknown.
    pub descriptors: u64,
}

/// The machine, or the job's part of it where a cgroup limits that.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    pub cpus: f64,
    /// That may be taken without anybody being pushed out.
    pub memory_available_bytes: u64,
    pub memory_limit_bytes: u64,
    /// Share of the last ten seconds in which somebody waited for memory (PSI, some, avg10); `None`: not to be had.
    pub memory_pressure_share: Option<f64>,
    /// Free bytes of /dev/shm, where finished batches lie; `None`: unknown.
    pub shm_free_bytes: Option<u64>,
    /// Most descriptors that a process of the job may open.
    pub descriptor_limit: u64,
    /// Of all of the machine, also where the job may use a part of it; `None`: not known yet.
    pub machine: Option<MachineCpus>,
    /// `None`: it is not known what others read, or nobody is to be asked.
    pub storage: Option<SharedStorage>,
}

/// The storage that the job waits for most, and what it and other jobs of the node read from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedStorage {
    /// By this job, since it began; what it reads from other storage as well.
    pub own_bytes: u64,
    /// Other jobs that read from it; 0: it is this job's alone.
    pub others: u32,
    /// By all of them together, as of some seconds ago.
    pub others_bytes_per_s: u64,
}

/// CPUs of a machine over the last seconds, on average. What its host gave to others is in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineCpus {
    pub idle: f64,
    /// By any process.
    pub busy: f64,
}

/// Turn a knob of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    pub decision: u64,
    pub rank: u32,
    pub loader: Option<u16>,
    pub knob: String,
    pub value: u64,
}

/// What follows from an observation.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub actions: Vec<Action>,
    /// To be appended; the caller numbers the lines.
    pub audit: Vec<AuditEvent>,
}
