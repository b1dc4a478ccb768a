use crate::Causes;
use serde::{Deserialize, Serialize};

/// Phase of a trainer. Shares are those of [`Phase::Training`] unless another phase is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// From the process's start to its first batch in training; without a loader, to the end of its first step.
    Startup,
    Training,
    /// Steps of a loader that is iterated with gradients off, or beside a loop that trains without a loader.
    Evaluation,
    /// From an iterator's end to the first batch of the next one.
    Between,
    /// From the last iterator's end to the process's.
    After,
}

impl Phase {
    pub const ALL: [Phase; 5] =
        [Phase::Startup, Phase::Training, Phase::Evaluation, Phase::Between, Phase::After];

    pub const fn name(self) -> &'static str {
        match self {
            Phase::Startup => "start-up",
            Phase::Training => "training",
            Phase::Evaluation => "evaluation",
            Phase::Between => "between epochs",
            Phase::After => "after training",
        }
    }
}

/// Who saw a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceKinds {
    pub kernel: bool,
    pub shim: bool,
}

/// One step of one rank: from one batch handed to the trainer to the next, or without a loader from the end of one step
/// of the optimiser or the script to the end of the next (in other phases: the interval itself).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLedger {
    pub rank: u32,
    /// Which loader of the rank, in order of first use, or [`StepLedger::NO_LOADER`].
    pub loader: u16,
    pub phase: Phase,
    /// Number of the step within this rank and phase, from 0.
    pub index: u64,
    /// Whether this is only a part of a step, which does not count as one: an evaluation's time until its first batch,
    /// or the part of a training step before an evaluation within it.
    #[serde(default)]
    pub part: bool,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Adds up to `end_ns - start_ns`.
    pub causes: Causes,
    /// The part of the waits in `causes` during which the device still had work; known only where a device was
    /// watched. `None`: every wait is a host wait.
    pub hidden_ns: Option<u64>,
    /// pid of the worker that made the batch; `None`: the trainer itself, or not known.
    pub producer: Option<u32>,
    /// Samples in the batch that the trainer had in hand during the step (handed over at its start), 0 when
    /// unknown.
    pub samples: u32,
    pub evidence: EvidenceKinds,
}

impl StepLedger {
    /// In the place of a loader's number: the loop trains without one.
    pub const NO_LOADER: u16 = u16::MAX;

    /// Steps that it counts as.
    pub fn steps(&self) -> u64 {
        u64::from(!self.part)
    }
}

/// One training run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobFacts {
    pub name: String,
    pub command: Vec<String>,
    /// Root of the process tree.
    pub pid: u32,
    pub user: String,
    pub started_wall_ns: u64,
    pub ended_wall_ns: Option<u64>,
    /// As a shell would show it (128 + signal for a killed one).
    pub exit_code: Option<i32>,
    /// Whether the job was launched by us or attached to.
    pub attached: bool,
    /// CPUs that it may use, by its affinity and the quotas of its control groups; `None` where they were not determined.
    #[serde(default)]
    pub cpus: Option<f64>,
}

/// One trainer process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFacts {
    pub rank: u32,
    pub world_size: u32,
    pub pid: u32,
    pub host: String,
    pub torch_version: Option<String>,
    pub python_version: Option<String>,
    /// Hooks that could not be set, one sentence each.
    pub unavailable: Vec<String>,
    pub loaders: Vec<LoaderFacts>,
    /// The most loader workers that there were at the same time; 0 where they were not counted.
    #[serde(default)]
    pub workers_at_once: u32,
}

/// One DataLoader of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderFacts {
    pub loader: u16,
    pub workers: u32,
    pub batch_size: Option<u32>,
    pub prefetch_factor: Option<u32>,
    pub pin_memory: bool,
    pub persistent_workers: bool,
    /// `fork`, `spawn`, `forkserver`; empty when the trainer makes the batches itself.
    pub start_method: String,
    /// Class of the data set.
    pub dataset: String,
    /// Samples an epoch, where the data set has a length.
    pub dataset_len: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    pub host: String,
    pub kernel: String,
    pub cpus: u32,
    pub cpu_model: String,
    pub memory_bytes: u64,
    /// Names of GPUs, by NVML.
    pub gpus: Vec<String>,
}
