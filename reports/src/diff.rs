//! What changed between two recordings, by how much, and whether that is more than noise.
//!
//! The figures are the ones of the reports: a phase's sums over the whole run. The noise comes from how they varied
//! from window to window within each run; [`noise`] says how and what it cannot see.

mod cache;
mod condition;
mod figure;
mod knobs;
pub mod noise;
mod text;
mod verdict;
mod windows;

pub use cache::{CacheChange, CacheDiff, CacheSide};
pub use condition::{BadCondition, Condition};
pub use figure::{Figure, Unit};
pub use knobs::KnobDiff;
pub use text::render as text;

use crate::{Error, Run, clean_json};
use condition::Limit;
use figure::Totals;
use serde::Serialize;
use stallscope_model::Phase;
use std::path::PathBuf;
use windows::Windows;

/// Version of [`json`]'s fields (reports/schema/diff-1.json).
pub const SCHEMA: u32 = 1;

/// Two runs side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    schema: u32,
    pub a: Side,
    pub b: Side,
    /// The answer in one sentence.
    pub verdict: String,
    /// Whether both are runs of a job of the same name.
    pub same_job: bool,
    /// How sure a change has to be to be called beyond noise.
    pub confidence: f64,
    /// Those that either run has, training first.
    pub phases: Vec<PhaseDiff>,
    /// Knobs that were set differently at the end.
    pub knobs: Vec<KnobDiff>,
    /// `None` where neither run has a cache.
    pub cache: Option<CacheDiff>,
}

/// One of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    pub recording: PathBuf,
    pub job: String,
    pub host: String,
    pub ranks: usize,
    /// Of the windows that the noise is estimated from.
    pub window_ns: u64,
    /// What a reader should know of the recording, one sentence each.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseDiff {
    pub phase: Phase,
    pub a: PhaseSide,
    pub b: PhaseSide,
    pub figures: Vec<Change>,
}

/// A phase of one of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PhaseSide {
    pub wall_ns: u64,
    pub steps: u64,
    /// Windows with steps of this phase.
    pub windows: usize,
}

/// One figure in both runs, in the unit that its name ends with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    #[serde(serialize_with = "as_name")]
    pub figure: Figure,
    /// `None` where it is not known, in all of these.
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// `b - a`.
    pub change: Option<f64>,
    /// `change / a`; `None` also where `a` is 0.
    pub change_ratio: Option<f64>,
    /// The change is known up to this, more or less.
    pub noise: Option<f64>,
    pub judgement: Judgement,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// The change is larger than its noise.
    BeyondNoise,
    WithinNoise,
    /// One of the runs has too few windows to know its noise.
    TooShortToTell,
    /// One of the runs does not have the figure.
    NotInBoth,
}

fn as_name<S: serde::Serializer>(figure: &Figure, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(figure)
}

/// The comparison as JSON with the sentences of [`Diff::failures`]; indented, with a newline at its end.
pub fn json(diff: &Diff, failed: &[String]) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        #[serde(flatten)]
        diff: &'a Diff,
        /// One sentence for each condition that failed.
        failed: &'a [String],
    }
    // Strings, numbers and lists in structs: there is nothing in it that JSON cannot hold.
    clean_json(&serde_json::to_string_pretty(&Document { diff, failed }).unwrap_or_default()) + "\n"
}

/// Compares `b` with `a`, which is what it is measured against.
///
/// # Errors
/// When the steps of a short run cannot be read from its files.
pub fn compare(a: &Run, b: &Run) -> Result<Diff, Error> {
    let windows = [Windows::of(a)?, Windows::of(b)?];
    let [side_a, side_b] = [(a, &windows[0]), (b, &windows[1])].map(|(run, windows)| Side {
        recording: run.sources.first().map(|source| source.path.clone()).unwrap_or_default(),
        job: run.summary.job.name.clone(),
        host: run.summary.host.host.clone(),
        ranks: run.summary.ranks.len(),
        window_ns: windows.length_ns,
        notes: run.notes.iter().cloned().chain(knobs::note(run)).collect(),
    });
    let others = Phase::ALL.into_iter().filter(|phase| *phase != Phase::Training);
    let order = [Phase::Training].into_iter().chain(others);
    let phases = order.filter_map(|phase| compare_phase(phase, [a, b], &windows)).collect();
    let mut diff = Diff {
        schema: SCHEMA,
        verdict: String::new(),
        same_job: side_a.job == side_b.job,
        a: side_a,
        b: side_b,
        confidence: noise::CONFIDENCE,
        phases,
        knobs: knobs::between(a, b),
        cache: cache::between(a, b),
    };
    diff.verdict = verdict::of(&diff);
    Ok(diff)
}

fn compare_phase(phase: Phase, runs: [&Run; 2], windows: &[Windows; 2]) -> Option<PhaseDiff> {
    let totals =
        runs.map(|run| Totals::of_phase(run.summary.phases.iter().filter(|summary| summary.phase == phase)));
    if totals.iter().all(|totals| totals.steps == 0) {
        return None;
    }
    let windows = [0, 1].map(|side| windows[side].of_phase(phase));
    let [a, b] = [0, 1].map(|side| PhaseSide {
        wall_ns: totals[side].causes.total_ns(),
        steps: totals[side].steps,
        windows: windows[side].len(),
    });
    let figures = Figure::all().map(|figure| change(figure, &totals, windows)).collect();
    Some(PhaseDiff { phase, a, b, figures })
}

fn change(figure: Figure, totals: &[Totals; 2], windows: [&[Totals]; 2]) -> Change {
    let [a, b] = [0, 1].map(|side| figure.value(&totals[side]));
    let change = a.zip(b).map(|(a, b)| b - a);
    let spreads = windows.map(|windows| {
        let ratios: Vec<(f64, f64)> = windows.iter().filter_map(|window| figure.ratio(window)).collect();
        noise::spread(&ratios)
    });
    let (noise, judgement) = judged(change, spreads);
    let change_ratio = change.zip(a).filter(|(_, a)| *a != 0.0).map(|(change, a)| change / a);
    Change { figure, a, b, change, change_ratio, noise, judgement }
}

/// Up to what a change is known, and what it is.
fn judged(change: Option<f64>, spreads: [Option<noise::Spread>; 2]) -> (Option<f64>, Judgement) {
    // It is known no better than the two ways to measure it agree: a job of several ranks is more than its windows.
    let noise = change
        .zip(spreads[0].zip(spreads[1]))
        .map(|(change, (a, b))| noise::margin(&a, &b) + (change - (b.ratio - a.ratio)).abs());
    let judgement = match (change, noise) {
        (None, _) => Judgement::NotInBoth,
        (_, None) => Judgement::TooShortToTell,
        (Some(change), Some(noise)) if change.abs() > noise => Judgement::BeyondNoise,
        _ => Judgement::WithinNoise,
    };
    (noise, judgement)
}

impl Diff {
    /// The training phase, where either run has one.
    pub fn training(&self) -> Option<&PhaseDiff> {
        self.phases.iter().find(|phase| phase.phase == Phase::Training)
    }

    /// One sentence for each condition that holds, or that cannot be judged. A change that is within noise fails no
    /// condition on changes; where noise is not known, the change alone decides and the sentence says so.
    pub fn failures(&self, conditions: &[Condition]) -> Vec<String> {
        conditions.iter().filter_map(|condition| self.failure(condition)).collect()
    }

    fn failure(&self, condition: &Condition) -> Option<String> {
        let unjudged = |why: &str| Some(format!("\"{condition}\" cannot be judged: {why}"));
        let Some(training) = self.training().filter(|training| training.b.steps > 0) else {
            return unjudged("the second recording has no training steps");
        };
        let figure = condition.figure;
        let name = figure.short();
        let found = training.figures.iter().find(|change| change.figure == figure)?;
        let Some(b) = found.b else { return unjudged(&format!("the second recording does not have {name}")) };
        let Some((a, change)) = found.a.zip(found.change) else {
            return match condition.limit {
                Limit::Value(_) => self.held(condition, b, format!("{name} is {}", text::value(figure, b))),
                _ => unjudged(&format!("the first recording does not have {name}")),
            };
        };
        let [shown_a, shown_b] = [a, b].map(|value| text::value(figure, value));
        let went = format!("{name} went from {shown_a} to {shown_b}");
        let value = match condition.limit {
            Limit::Value(_) => return self.held(condition, b, format!("{name} is {shown_b}")),
            Limit::Change(_) => change,
            // From nothing to something is more than any part of it.
            Limit::RelativeChange(_) if a == 0.0 && change > 0.0 => f64::INFINITY,
            Limit::RelativeChange(_) => found.change_ratio.unwrap_or(0.0),
        };
        match found.judgement {
            Judgement::WithinNoise => None,
            Judgement::BeyondNoise => self.held(condition, value, went),
            Judgement::TooShortToTell | Judgement::NotInBoth => {
                self.held(condition, value, went + "; the runs are too short to tell whether that is noise")
            }
        }
    }

    fn held(&self, condition: &Condition, value: f64, sentence: String) -> Option<String> {
        condition.holds(value).then(|| format!("\"{condition}\": {sentence}"))
    }
}
