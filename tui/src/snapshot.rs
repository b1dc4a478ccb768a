//! What the reader tells the terminal: whole, unchanging states.

use crate::series::Window;
use stallscope_model::{
    AuditEvent, CachePeriod, Causes, CheckpointEvent, RunSummary, StepDetail, WorkerPeriod,
};
use std::path::PathBuf;
use std::sync::Arc;

/// Sent whenever something has changed.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// All jobs, in no order.
    Jobs(Arc<Vec<JobRow>>),
    Run(Arc<RunView>),
    /// What came of something that was asked for.
    Said(String),
    /// The recording at this path cannot be read (any more), in a sentence.
    Lost {
        recording: PathBuf,
        reason: String,
    },
}

/// Where a job or recording comes from, for [`crate::Places`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub name: String,
    pub pid: Option<u32>,
    pub recording: PathBuf,
    pub running: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobState {
    #[default]
    Running,
    Finished,
    /// Its writer was killed.
    Killed,
    Unreadable,
}

impl JobState {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Finished => "finished",
            JobState::Killed => "killed",
            JobState::Unreadable => "unreadable",
        }
    }
}

/// A job or a recording in the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JobRow {
    pub name: String,
    pub state: JobState,
    pub pid: Option<u32>,
    pub started_wall_ns: u64,
    pub took_ns: u64,
    pub ranks: usize,
    /// Of training.
    pub steps: u64,
    /// Mean of training steps.
    pub step_ns: u64,
    pub samples: u64,
    pub wall_ns: u64,
    /// Of training.
    pub causes: Causes,
    /// Share of each of the last periods, oldest first, that was not compute.
    pub trend: Vec<f64>,
    /// The verdict, or why there is none.
    pub verdict: String,
    pub recording: PathBuf,
}

impl JobRow {
    /// Share of training time that was not the job's own work.
    pub(crate) fn stall_share(&self) -> f64 {
        stall_share(&self.causes)
    }
}

/// Share of time that is not the job's own work; 0 when there is no time at all.
pub(crate) fn stall_share(causes: &Causes) -> f64 {
    if causes.total_ns() == 0 { 0.0 } else { 1.0 - causes.share(stallscope_model::Cause::Compute) }
}

/// What of a recording is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub recording: PathBuf,
    /// End of the time shown; `None`: the newest there is.
    pub to_ns: Option<u64>,
    /// Length of the time shown; `None`: all of the run.
    pub span_ns: Option<u64>,
    /// Whose workers are shown.
    pub rank: Option<u32>,
    /// Whether steps in full are shown.
    pub steps: bool,
}

/// One run around one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunView {
    pub recording: PathBuf,
    pub state: JobState,
    /// Version of the recording's tables.
    pub format: i64,
    /// Since the last flush, when this was read.
    pub written_ago_ns: u64,
    /// Of the whole run, as of the last flush.
    pub summary: Arc<RunSummary>,
    /// First and newest moment there is anything of.
    pub begin_ns: u64,
    pub end_ns: u64,
    pub window: Window,
    /// Of the wanted rank, within the window.
    pub workers: Vec<WorkerPeriod>,
    /// Of all ranks, within the window; none where that is long.
    pub caches: Vec<CachePeriod>,
    /// All of them.
    pub checkpoints: Arc<Vec<CheckpointEvent>>,
    /// The newest lines, oldest first.
    pub audit: Arc<Vec<AuditEvent>>,
    /// All steps kept in full, slowest first; `None` while they were not asked for.
    pub steps: Option<Arc<Vec<StepDetail>>>,
    /// When the longest training step that roll-ups know ended, and how long it took.
    pub worst: Option<(u64, u64)>,
}
