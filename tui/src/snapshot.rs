//! What the reader sends to the dashboard: whole states that never change.

use crate::series::Window;
use stallscope_model::{
    AuditEvent, CachePeriod, Causes, CheckpointEvent, RunSummary, StepDetail, WorkerPeriod,
};
use std::path::PathBuf;
use std::sync::Arc;

/// A change that the dashboard takes in.
#[derive(Clone, Debug)]
pub(crate) enum Update {
    /// All jobs, in no order.
    Jobs(Arc<Vec<JobRow>>),
    Run(Arc<RunView>),
    /// The outcome of [`crate::app::Action::Turn`], in a sentence.
    Answer(String),
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
    /// Stall share of each of the last 10 s periods, oldest first.
    pub trend: Vec<f64>,
    /// The verdict, or the reason why there is none.
    pub verdict: String,
    pub recording: PathBuf,
}

impl JobRow {
    /// Share of training time that was not the job's own work: it waited for data, a CPU, checkpoints, ranks or what nobody knows.
    pub(crate) fn waiting_share(&self) -> f64 {
        waiting_share(&self.causes)
    }
}

/// Share of time that is not the job's own work; 0 when there is no time at all.
pub(crate) fn waiting_share(causes: &Causes) -> f64 {
    if causes.total_ns() == 0 { 0.0 } else { 1.0 - causes.share(stallscope_model::Cause::Compute) }
}

/// The part of a recording that the dashboard has to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub recording: PathBuf,
    /// End of the time shown; `None`: the newest there is.
    pub to_ns: Option<u64>,
    /// Length of the time shown; `None`: all of the run.
    pub span_ns: Option<u64>,
    /// Rank whose workers are shown.
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
    /// Time from the recorder's last flush to this read.
    pub written_ago_ns: u64,
    /// Of the whole run, as of the last flush.
    pub summary: Arc<RunSummary>,
    /// The first and the newest moment that the recording has something of.
    pub begin_ns: u64,
    pub end_ns: u64,
    pub window: Window,
    /// Workers of the wanted rank, within the window.
    pub workers: Vec<WorkerPeriod>,
    /// Caches of all ranks, within the window; empty where the window is too long to read them.
    pub caches: Vec<CachePeriod>,
    /// All checkpoints of the run.
    pub checkpoints: Arc<Vec<CheckpointEvent>>,
    /// The newest lines, oldest first.
    pub audit: Arc<Vec<AuditEvent>>,
    /// All steps kept in full, slowest first; `None` before they are read.
    pub steps: Option<Arc<Vec<StepDetail>>>,
    /// End and length of the longest training step in the roll-ups, in nanoseconds.
    pub worst: Option<(u64, u64)>,
}
