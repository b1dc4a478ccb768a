//! What is compared: one list of figures, each a ratio of sums, so that runs and their windows are read alike.

use stallscope_model::{Cause, Causes, PhaseSummary};
use std::fmt;

/// A figure of a phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Wall time by steps.
    StepMean,
    StepMedian,
    StepP95,
    SamplesPerSecond,
    /// Fetch, prep, starved and transfer together.
    DataStall,
    /// Snapshot and persist together.
    CheckpointStall,
    /// A cause's part of the phase's time.
    Share(Cause),
    /// A cause's time by steps.
    PerStep(Cause),
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A part of the phase's time, 0 to 1.
    Share,
    Nanoseconds,
    PerSecond,
}

impl Figure {
    /// All of them, in the order they are shown.
    pub fn all() -> impl Iterator<Item = Figure> {
        [
            Figure::StepMean,
            Figure::StepMedian,
            Figure::StepP95,
            Figure::SamplesPerSecond,
            Figure::DataStall,
            Figure::CheckpointStall,
        ]
        .into_iter()
        .chain(Cause::ALL.map(Figure::Share))
        .chain(Cause::ALL.map(Figure::PerStep))
    }

    pub const fn unit(self) -> Unit {
        match self {
            Figure::StepMean | Figure::StepMedian | Figure::StepP95 | Figure::PerStep(_) => Unit::Nanoseconds,
            Figure::SamplesPerSecond => Unit::PerSecond,
            Figure::DataStall | Figure::CheckpointStall | Figure::Share(_) => Unit::Share,
        }
    }

    /// The figure by its name, with or without its unit: `fetch_share` or `fetch`, `step_p50_ns` or `step_p50`.
    pub fn named(name: &str) -> Option<Figure> {
        Figure::all().find(|figure| figure.to_string() == name || figure.short() == name)
    }

    /// Its name without the unit.
    pub(crate) fn short(self) -> String {
        let name = self.to_string();
        name.strip_suffix("_share").or(name.strip_suffix("_ns")).unwrap_or(&name).to_owned()
    }

    /// Numerator and denominator; `None` where it is not known.
    pub(crate) fn ratio(self, totals: &Totals) -> Option<(f64, f64)> {
        let wall = totals.causes.total_ns() as f64;
        let steps = totals.steps as f64;
        let of = |part: u64, whole: f64| Some((part as f64, whole));
        match self {
            Figure::StepMean => Some((wall, steps)),
            Figure::StepMedian => of(totals.step_p50_ns?, 1.0),
            Figure::StepP95 => of(totals.step_p95_ns?, 1.0),
            Figure::SamplesPerSecond => (totals.samples > 0).then_some((totals.samples as f64 * 1e9, wall)),
            Figure::DataStall => of(totals.causes.data_stall_ns(), wall),
            Figure::CheckpointStall => of(totals.causes.checkpoint_stall_ns(), wall),
            Figure::Share(cause) => of(totals.causes[cause], wall),
            Figure::PerStep(cause) => of(totals.causes[cause], steps),
        }
        .filter(|(_, denominator)| *denominator > 0.0)
    }

    /// `None` where it is not known.
    pub(crate) fn value(self, totals: &Totals) -> Option<f64> {
        self.ratio(totals).map(|(numerator, denominator)| numerator / denominator)
    }
}

/// The name that JSON and conditions use, with the unit.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Figure::StepMean => f.write_str("step_mean_ns"),
            Figure::StepMedian => f.write_str("step_p50_ns"),
            Figure::StepP95 => f.write_str("step_p95_ns"),
            Figure::SamplesPerSecond => f.write_str("samples_per_s"),
            Figure::DataStall => f.write_str("data_stall_share"),
            Figure::CheckpointStall => f.write_str("checkpoint_stall_share"),
            Figure::Share(cause) => write!(f, "{}_share", cause.name()),
            Figure::PerStep(cause) => write!(f, "{}_per_step_ns", cause.name()),
        }
    }
}

/// Sums over a phase of a run, or over one window of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) steps: u64,
    pub(crate) samples: u64,
    pub(crate) causes: Causes,
    /// Quantiles are known of one loader's steps only.
    pub(crate) step_p50_ns: Option<u64>,
    pub(crate) step_p95_ns: Option<u64>,
}

impl Totals {
    /// A phase with all its loaders; nothing where the run has no step of it.
    pub(crate) fn of_phase<'a>(parts: impl Iterator<Item = &'a PhaseSummary>) -> Totals {
        let mut totals = Totals::default();
        for part in parts.filter(|part| part.steps > 0) {
            let only = totals.steps == 0;
            totals.step_p50_ns = only.then_some(part.step_p50_ns).filter(|ns| *ns > 0);
            totals.step_p95_ns = only.then_some(part.step_p95_ns).filter(|ns| *ns > 0);
            totals.steps = totals.steps.saturating_add(part.steps);
            totals.samples = totals.samples.saturating_add(part.samples);
            totals.causes += &part.causes;
        }
        totals
    }
}
